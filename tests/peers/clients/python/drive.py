"""Drives a worker with kafka-connect-py from PyPI, as it comes.

    drive.py URL '{"name": …, "config": {…}, "change": [key, value]}'

One line per step: its name and what the client made of the answer, as JSON. The lines of two workers can be compared:
they hold no value that depends on which class or worker it is. The package knows no offsets.
"""

import json
import sys
import time

from kafka_connect import KafkaConnect
from requests.exceptions import HTTPError

LIMIT = 60


def say(step, result):
    print(json.dumps([step, result]), flush=True)


def refusal(call, *arguments):
    try:
        call(*arguments)
        return "accepted"
    except HTTPError as error:
        # Some calls of the package raise with the body's text and without the response.
        return f"refused with {error.response.status_code if error.response is not None else json.loads(str(error))['error_code']}"


def states(status):
    return {
        "connector": status["connector"]["state"],
        "tasks": [task["state"] for task in status["tasks"]],
        "type": status["type"],
    }


class Drive:
    def __init__(self, url, name, config, change):
        self.client, self.name, self.config, self.change = KafkaConnect(url), name, config, change

    def settled(self, state, tasks):
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                found = states(self.client.get_connector_status(self.name))
            except HTTPError as error:
                found = str(error)
            if isinstance(found, dict) and found["connector"] == state and found["tasks"] == tasks:
                return found
            if time.monotonic() > deadline:
                raise SystemExit(f"{state} not reached: {found}")
            time.sleep(0.1)

    def topics(self, wanted):
        deadline = time.monotonic() + LIMIT
        while True:
            found = self.client.list_connector_topics(self.name)[self.name]["topics"]
            if found == wanted or time.monotonic() > deadline:
                return found == wanted
            time.sleep(0.1)

    def run(self):
        client, name, config = self.client, self.name, self.config
        kind = config["connector.class"]
        info = client.get_cluster_info()
        say("info", [sorted(set(info) & {"version", "commit", "kafka_cluster_id"}), info["version"].count(".") >= 1])
        say("plugins", [plugin["type"] for plugin in client.list_connector_plugins() if plugin["class"] == kind])
        say("validate", client.validate_connector_config(kind, {"name": name, **config})["error_count"])
        without = {key: value for key, value in config.items() if key != "topic"}
        say("validate without topic", client.validate_connector_config(kind, {"name": name, **without})["error_count"] > 0)
        say("get unknown", refusal(client.get_connector, name))

        made = client.create_connector({"name": name, "config": config})
        say("create", [made["name"], made["type"], made["config"] == {**config, "name": name}])
        say("create again", refusal(client.create_connector, {"name": name, "config": config}))
        say("running", self.settled("RUNNING", ["RUNNING"]))
        say("list", name in client.list_connectors())
        say("list with status", states(client.list_connectors(expand="status")[name]["status"]))
        say("list with info", sorted(client.list_connectors(expand="info")[name]["info"]))
        say("list by state", name in client.list_connectors(state="RUNNING"))
        say("tasks", [task["id"] for task in client.list_connector_tasks(name)] == [{"connector": name, "task": 0}])
        say("task status", client.get_connector_task_status(name, 0)["state"])
        say("topics", self.topics([config["topic"]]))

        client.pause_connector(name)
        say("pause", self.settled("PAUSED", ["PAUSED"]))
        say("reset topics", client.reset_connector_topics(name))
        say("topics after reset", self.topics([]))
        client.resume_connector(name)
        say("resume", self.settled("RUNNING", ["RUNNING"]))
        changed = {**config, "name": name, self.change[0]: self.change[1]}
        say("update", client.update_connector(name, changed)["config"] == changed)
        say("updated", [client.get_connector_config(name) == changed, self.settled("RUNNING", ["RUNNING"])])
        say("restart", [client.restart_connector(name), self.settled("RUNNING", ["RUNNING"])])
        restarted = client.restart_connector(name, include_tasks=True)
        say("restart with tasks", [states(restarted), self.settled("RUNNING", ["RUNNING"])])
        # This client writes True and False as Python does.
        nothing = client.restart_connector(name, include_tasks=True, only_failed=True)
        say("restart of what failed", states(nothing))
        say("restart task", [client.restart_connector_task(name, 0), self.settled("RUNNING", ["RUNNING"])])
        say("restart of an unknown task", refusal(client.restart_connector_task, name, 99))
        client.stop_connector(name)
        say("stop", self.settled("STOPPED", []))
        client.resume_connector(name)
        say("resume after stop", self.settled("RUNNING", ["RUNNING"]))

        client.delete_connector(name)
        deadline = time.monotonic() + LIMIT
        while (gone := refusal(client.get_connector_status, name)) == "accepted" and time.monotonic() < deadline:
            time.sleep(0.1)
        say("status of deleted", gone)
        say("delete again", refusal(client.delete_connector, name))
        say("restart of unknown", refusal(client.restart_connector, name))


if __name__ == "__main__":
    Drive(sys.argv[1], **json.loads(sys.argv[2])).run()
