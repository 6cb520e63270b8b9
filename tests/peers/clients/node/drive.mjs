// Drives a worker with the npm package kafka-connect-client, as it comes, through all a connector's life has.
//
//   node drive.mjs URL '{"name": …, "config": {…}, "change": [key, value]}'
//
// One line per step: its name and what the client made of the answer, as JSON. The lines of two workers can be
// compared: they hold no value that depends on which class or worker it is.
import { createRequire } from "node:module";
import path from "node:path";
import { isDeepStrictEqual } from "node:util";

// The package is where clients.py installed it, not beside this file.
const require = createRequire(path.join(process.env.CLIENT_HOME, "package.json"));
const { KafkaConnectClient } = require("kafka-connect-client");
// axios, which the package stands on, names a web form as the content type of a PUT or POST without a body, and Kafka
// Connect refuses that with 415; whoever uses the package on Node has to set this. We do not mind either.
const { defaults } = require("axios");
for (const verb of ["put", "post"]) defaults.headers[verb]["Content-Type"] = "application/json";

const [, , address, text] = process.argv;
const { name, config, change } = JSON.parse(text);
const { protocol, hostname, port } = new URL(address);
const client = new KafkaConnectClient({ protocol: protocol.replace(":", ""), host: hostname, port: Number(port) });
const connector = client.connector(name);
const LIMIT = 60_000;

const say = (step, result) => console.log(JSON.stringify([step, result]));
const refusal = (call) =>
  call.then((answer) => `status ${answer.status}`, (error) => `refused with ${error.response?.status ?? error}`);
const states = ({ connector, tasks, type }) => ({ connector: connector.state, tasks: tasks.map((t) => t.state), type });

// The client's answer to `question`, once `wanted` holds of it.
async function reach(question, wanted) {
  const deadline = Date.now() + LIMIT;
  for (;;) {
    const answer = await question().then(({ data }) => data, (error) => error);
    if (!(answer instanceof Error) && wanted(answer)) return answer;
    if (Date.now() > deadline) throw new Error(`not reached: ${JSON.stringify(answer)}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
const settled = async (state, tasks) =>
  states(await reach(() => connector.getStatus(), (s) => isDeepStrictEqual(states(s), { ...states(s), connector: state, tasks })));

const { data: plugins } = await client.getConnectorPlugins({ connectorsOnly: true });
say("plugins", plugins.find((plugin) => plugin.class === config["connector.class"])?.type);
const check = async (config) => (await client.validateConnectorConfig(config["connector.class"], config)).data;
say("validate", (await check({ name, ...config })).error_count);
const { topic, ...without } = config;
say("validate without topic", (await check({ name, ...without })).error_count > 0);
say("info of unknown", await refusal(connector.get()));

const created = await client.createConnector(name, config);
say("create", [created.status, created.data.name, created.data.type, isDeepStrictEqual(created.data.config, { ...config, name })]);
say("create again", await refusal(client.createConnector(name, config)));
say("list", (await client.getConnectors()).data.includes(name));
say("running", await settled("RUNNING", ["RUNNING"]));
const expanded = (await client.getConnectors({ expand: ["status"] })).data;
say("expand", Array.isArray(expanded) ? expanded.includes(name) : states(expanded[name].status));
say("tasks", (await connector.getTasks()).data.map(({ id }) => [id.connector, id.task]));
say("task status", (await connector.getTaskStatus(0)).data.state);

say("pause", [(await connector.pause()).status, await settled("PAUSED", ["PAUSED"])]);
say("resume", [(await connector.resume()).status, await settled("RUNNING", ["RUNNING"])]);
const changed = { ...config, name, [change[0]]: change[1] };
say("update", [(await connector.updateConfig(changed)).status, isDeepStrictEqual((await connector.getConfig()).data, changed)]);
say("updated", await settled("RUNNING", ["RUNNING"]));
say("restart", [(await connector.restart()).status, await settled("RUNNING", ["RUNNING"])]);
say("restart task", [(await connector.restartTask(0)).status, await settled("RUNNING", ["RUNNING"])]);
say("restart of an unknown task", await refusal(connector.restartTask(99)));

await reach(() => connector.getOffsets(), ({ offsets }) => offsets.length === 1);
say("offsets", (await connector.getOffsets()).data.offsets.length);
say("alter while running", await refusal(connector.alterOffsets((await connector.getOffsets()).data.offsets)));
say("reset while running", await refusal(connector.resetOffsets()));
say("stop", [(await connector.stop()).status, await settled("STOPPED", [])]);
const { data: before } = await connector.getOffsets();
// Every number a step further: what is read back afterwards can only be what was written.
const further = before.offsets.map(({ partition, offset }) => ({
  partition,
  offset: Object.fromEntries(Object.entries(offset).map(([key, value]) => [key, value + 1])),
}));
say("alter with nothing", await refusal(connector.alterOffsets([])));
say("alter", (await connector.alterOffsets(further)).data);
say("altered", isDeepStrictEqual((await connector.getOffsets()).data, { offsets: further }));
say("reset", (await connector.resetOffsets()).data);
say("reset offsets", (await connector.getOffsets()).data);
say("resume after stop", [(await connector.resume()).status, await settled("RUNNING", ["RUNNING"])]);
say("reset topics", (await connector.resetTopics()).status);

say("delete", (await connector.delete()).status);
const gone = await reach(() => refusal(connector.getStatus()).then((data) => ({ data })), (s) => s.startsWith("refused"));
say("status of deleted", gone);
say("delete again", await refusal(connector.delete()));
say("pause of unknown", await refusal(connector.pause()));
