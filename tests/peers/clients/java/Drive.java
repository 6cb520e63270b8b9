import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.function.Predicate;
import org.sourcelab.kafka.connect.apiclient.Configuration;
import org.sourcelab.kafka.connect.apiclient.KafkaConnectClient;
import org.sourcelab.kafka.connect.apiclient.request.dto.ConnectorPluginConfigDefinition;
import org.sourcelab.kafka.connect.apiclient.request.dto.ConnectorStatus;
import org.sourcelab.kafka.connect.apiclient.request.dto.NewConnectorDefinition;
import org.sourcelab.kafka.connect.apiclient.request.post.PostConnectorRestart;
import org.sourcelab.kafka.connect.apiclient.rest.exceptions.InvalidRequestException;

/**
 * Drives a worker with org.sourcelab:kafka-connect-client, which AKHQ uses, as it comes.
 *
 * <p>{@code java Drive.java URL '{"name": …, "config": {…}, "change": [key, value]}'}
 *
 * <p>One line per step: its name and what the client made of the answer, as JSON. The lines of two workers can be
 * compared: they hold no value that depends on which class or worker it is. The library knows no offsets.
 */
public class Drive {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long LIMIT_MS = 60_000;

    private final KafkaConnectClient client;
    private final String name;
    private final Map<String, String> config;
    private final Map<String, String> changed;

    private Drive(String url, JsonNode subject) {
        client = new KafkaConnectClient(new Configuration(url));
        name = subject.get("name").asText();
        config = new HashMap<>();
        subject.get("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        changed = new HashMap<>(config);
        changed.put("name", name);
        changed.put(subject.get("change").get(0).asText(), subject.get("change").get(1).asText());
    }

    public static void main(String[] arguments) throws Exception {
        new Drive(arguments[0], JSON.readTree(arguments[1])).run();
    }

    private void run() throws Exception {
        String kind = config.get("connector.class");
        Map<String, String> named = new HashMap<>(config);
        named.put("name", name);
        Map<String, String> without = new HashMap<>(named);
        without.remove("topic");
        say("version", client.getConnectServerVersion().getVersion().matches("\\d+\\.\\d+(\\..*)?"));
        say("plugins", client.getConnectorPlugins().stream()
                .filter(plugin -> plugin.getClassName().equals(kind)).map(plugin -> plugin.getType()).toList());
        say("validate", errors(kind, named));
        say("validate without topic", errors(kind, without) > 0);
        say("get unknown", refusal(() -> client.getConnector(name)));

        var made = client.addConnector(new NewConnectorDefinition(name, config));
        say("create", List.of(made.getName(), made.getType(), made.getConfig().equals(named)));
        say("create again", refusal(() -> client.addConnector(new NewConnectorDefinition(name, config))));
        say("running", settled("RUNNING", List.of("RUNNING")));
        say("list", client.getConnectors().contains(name));
        var all = client.getConnectorsWithAllExpandedMetadata();
        say("expanded", List.of(states(all.getStatusForConnector(name)),
                all.getDefinitionForConnector(name).getConfig().equals(named)));
        say("tasks", client.getConnectorTasks(name).stream().map(task -> task.getId().getTask()).toList());
        say("task status", client.getConnectorTaskStatus(name, 0).getState());
        say("topics", reach(() -> client.getConnectorTopics(name).getTopics(), found -> !found.isEmpty())
                .equals(List.of(config.get("topic"))));

        say("pause", List.of(client.pauseConnector(name), settled("PAUSED", List.of("PAUSED"))));
        say("reset topics", client.resetConnectorTopics(name));
        say("topics after reset", reach(() -> client.getConnectorTopics(name).getTopics(), List::isEmpty));
        say("resume", List.of(client.resumeConnector(name), settled("RUNNING", List.of("RUNNING"))));
        say("update", client.updateConnectorConfig(name, changed).getConfig().equals(changed));
        say("updated", List.of(client.getConnectorConfig(name).equals(changed), settled("RUNNING", List.of("RUNNING"))));
        say("restart", List.of(client.restartConnector(name), settled("RUNNING", List.of("RUNNING"))));
        PostConnectorRestart whole = new PostConnectorRestart(name).withIncludeTasks(true).withOnlyFailed(false);
        say("restart with tasks", List.of(client.restartConnector(whole), settled("RUNNING", List.of("RUNNING"))));
        say("restart task", List.of(client.restartConnectorTask(name, 0), settled("RUNNING", List.of("RUNNING"))));
        say("restart of an unknown task", refusal(() -> client.restartConnectorTask(name, 99)));
        say("stop", List.of(client.stopConnector(name), settled("STOPPED", List.of())));
        say("resume after stop", List.of(client.resumeConnector(name), settled("RUNNING", List.of("RUNNING"))));

        say("delete", client.deleteConnector(name));
        say("status of deleted", reach(() -> refusal(() -> client.getConnectorStatus(name)), found -> !found.equals("accepted")));
        say("delete again", refusal(() -> client.deleteConnector(name)));
        say("pause of unknown", refusal(() -> client.pauseConnector(name)));
    }

    private int errors(String kind, Map<String, String> config) {
        // The library puts this name into the path.
        return client.validateConnectorPluginConfig(new ConnectorPluginConfigDefinition(kind, config)).getErrorCount();
    }

    private Map<String, Object> settled(String state, List<String> tasks) throws Exception {
        return reach(() -> states(client.getConnectorStatus(name)),
                found -> found.get("connector").equals(state) && found.get("tasks").equals(tasks));
    }

    private static Map<String, Object> states(ConnectorStatus status) {
        List<String> tasks = status.getTasks().stream().map(ConnectorStatus.TaskStatus::getState).toList();
        return new java.util.TreeMap<>(Map.of(
                "connector", status.getConnector().get("state"), "tasks", tasks, "type", status.getType()));
    }

    private static String refusal(Callable<?> call) throws Exception {
        try {
            call.call();
            return "accepted";
        } catch (InvalidRequestException refused) {
            return "refused with " + refused.getErrorCode();
        }
    }

    /** The answer to a question, once it is the wanted one. */
    private static <T> T reach(Callable<T> question, Predicate<T> wanted) throws Exception {
        long deadline = System.currentTimeMillis() + LIMIT_MS;
        while (true) {
            Object found;
            try {
                T answer = question.call();
                if (wanted.test(answer)) {
                    return answer;
                }
                found = answer;
            } catch (InvalidRequestException refused) {
                found = refused;
            }
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("not reached: " + Objects.toString(found));
            }
            Thread.sleep(100);
        }
    }

    private static void say(String step, Object result) throws Exception {
        System.out.println(JSON.writeValueAsString(List.of(step, result)));
    }
}
