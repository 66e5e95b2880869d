import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.node.*;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.*;
import org.apache.kafka.coordinator.group.api.streams.assignor.*;
import org.apache.kafka.coordinator.group.streams.*;
import org.apache.kafka.coordinator.group.streams.assignor.*;
import org.apache.kafka.coordinator.group.streams.topics.*;
import org.slf4j.helpers.NOPLogger;

/**
 * Runs parts of Kafka's coordinator of streams groups on cases from a file, one JSON object per line with the
 * field "part": "assign", "configure" or "reconcile". Prints the outcome of each as JSON, with sorted keys, or
 * {"error": NAME}.
 */
public class StreamsGroupOracle {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            JsonNode given = JSON.readTree(line);
            Object outcome;
            try {
                outcome = switch (given.get("part").asText()) {
                    case "assign" -> assign(given);
                    case "configure" -> configure(given);
                    default -> reconcile(given);
                };
            } catch (RuntimeException error) {
                outcome = Map.of("error", error.getClass().getSimpleName());
            }
            System.out.println(JSON.writer().with(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS).writeValueAsString(outcome));
        }
    }

    // ---- the assignor

    static Object assign(JsonNode given) {
        Map<String, MemberMetadataAndStateImpl> members = new HashMap<>();
        given.get("members").fields().forEachRemaining(entry -> {
            JsonNode member = entry.getValue();
            members.put(entry.getKey(), new MemberMetadataAndStateImpl(
                Optional.empty(), Optional.empty(), member.get("process").asText(), Map.of(),
                sets(member.get("active")), sets(member.get("standby")), Map.of(), offsets(member.get("offsets")), Map.of()));
        });
        List<String> names = new ArrayList<>();
        given.get("subtopologies").fieldNames().forEachRemaining(names::add);
        TopologyDescriber describer = new TopologyDescriber() {
            public List<String> subtopologies() { return names; }
            public int maxNumInputPartitions(String name) { return given.get("subtopologies").get(name).get(0).asInt(); }
            public boolean isStateful(String name) { return given.get("subtopologies").get(name).get(1).asBoolean(); }
        };
        GroupAssignment made = new StickyTaskAssignor().assign(
            new GroupSpecImpl(members, new AssignmentConfigsImpl(given.get("replicas").asInt(), List.of())), describer);
        Map<String, Object> result = new TreeMap<>();
        made.members().forEach((id, tasks) -> result.put(id, List.of(sorted(tasks.activeTasks()), sorted(tasks.standbyTasks()))));
        return result;
    }

    // ---- the topics

    record Topic(String name, int partitionCount) implements CoordinatorMetadataImage.TopicMetadata {
        public Uuid id() { return Uuid.ONE_UUID; }
        public List<String> partitionRacks(int partition) { return List.of(); }
    }

    static Object configure(JsonNode given) throws Exception {
        StreamsGroupHeartbeatRequestData.Topology topology = new StreamsGroupHeartbeatRequestData.Topology().setEpoch(1);
        for (JsonNode part : given.get("subtopologies")) {
            List<StreamsGroupHeartbeatRequestData.CopartitionGroup> groups = new ArrayList<>();
            for (JsonNode group : part.get("copartition"))
                groups.add(new StreamsGroupHeartbeatRequestData.CopartitionGroup()
                    .setSourceTopics(shorts(group.get(0))).setRepartitionSourceTopics(shorts(group.get(1))));
            topology.subtopologies().add(new StreamsGroupHeartbeatRequestData.Subtopology()
                .setSubtopologyId(part.get("id").asText()).setSourceTopics(texts(part.get("sources")))
                .setRepartitionSinkTopics(texts(part.get("sinks"))).setRepartitionSourceTopics(topics(part.get("repartition")))
                .setStateChangelogTopics(topics(part.get("changelogs"))).setCopartitionGroups(groups));
        }
        JsonNode existing = given.get("existing");
        CoordinatorMetadataImage image = (CoordinatorMetadataImage) java.lang.reflect.Proxy.newProxyInstance(
            StreamsGroupOracle.class.getClassLoader(), new Class<?>[] {CoordinatorMetadataImage.class},
            (proxy, method, values) -> existing.has((String) values[0])
                ? Optional.of(new Topic((String) values[0], existing.get((String) values[0]).asInt())) : Optional.empty());
        ConfiguredTopology made = InternalTopicManager.configureTopics(
            NOPLogger.NOP_LOGGER, "group", "member", 0, StreamsTopology.fromHeartbeatRequest(topology), image, Time.SYSTEM);
        Map<String, Object> result = new TreeMap<>();
        made.topicConfigurationException().ifPresent(error -> {
            result.put("status", error.status().code());
            result.put("detail", error.getMessage());
        });
        Map<String, Object> missing = new TreeMap<>();
        made.internalTopicsToBeCreated().forEach((name, topic) -> missing.put(name, List.of(topic.numPartitions(), topic.replicationFactor())));
        result.put("missing", missing);
        Map<String, Object> tasks = new TreeMap<>();
        made.subtopologies().ifPresent(parts -> parts.forEach((name, part) -> tasks.put(name, part.numberOfTasks())));
        result.put("tasks", tasks);
        return result;
    }

    static List<StreamsGroupHeartbeatRequestData.TopicInfo> topics(JsonNode named) {
        List<StreamsGroupHeartbeatRequestData.TopicInfo> topics = new ArrayList<>();
        named.fields().forEachRemaining(entry -> topics.add(new StreamsGroupHeartbeatRequestData.TopicInfo()
            .setName(entry.getKey()).setPartitions(entry.getValue().asInt())));
        return topics;
    }

    // ---- the member

    static Object reconcile(JsonNode given) {
        JsonNode member = given.get("member");
        StreamsGroupMember before = StreamsGroupMember.Builder.withDefaults("member")
            .setMemberEpoch(member.get("epoch").asInt()).setPreviousMemberEpoch(member.get("previous").asInt())
            .setState(MemberState.fromValue((byte) member.get("state").asInt())).setProcessId(member.get("process").asText())
            .setAssignedTasks(held(member.get("assigned"))).setTasksPendingRevocation(held(member.get("pending"))).build();
        JsonNode target = given.get("target"), owned = given.get("owned");
        StreamsGroupMember after = new CurrentAssignmentBuilder(before)
            .withTargetAssignment(given.get("epoch").asInt(), tuple(target))
            .withCurrentActiveTaskProcessId((name, task) -> {
                JsonNode process = given.get("active").get(name + "_" + task);
                return process == null ? null : process.asText();
            })
            .withCurrentStandbyTaskProcessIds((name, task) -> processes(given.get("standby"), name, task))
            .withCurrentWarmupTaskProcessIds((name, task) -> processes(given.get("warmup"), name, task))
            .withOwnedAssignment(owned.isNull() ? null : tuple(owned)).build();
        return List.of(after.memberEpoch(), after.previousMemberEpoch(), after.state().value(),
            shown(after.assignedTasks()), shown(after.tasksPendingRevocation()));
    }

    static Set<String> processes(JsonNode holders, String name, int task) {
        return holders.has(name + "_" + task) ? new HashSet<>(texts(holders.get(name + "_" + task))) : Set.of();
    }

    static TasksTuple tuple(JsonNode tasks) {
        return new TasksTuple(sets(tasks.get(0)), sets(tasks.get(1)), sets(tasks.get(2)));
    }

    static TasksTupleWithEpochs held(JsonNode tasks) {
        Map<String, Map<Integer, Integer>> active = new HashMap<>();
        tasks.get(0).fields().forEachRemaining(entry -> entry.getValue().fields().forEachRemaining(task -> active
            .computeIfAbsent(entry.getKey(), name -> new HashMap<>()).put(Integer.valueOf(task.getKey()), task.getValue().asInt())));
        return new TasksTupleWithEpochs(active, sets(tasks.get(1)), sets(tasks.get(2)));
    }

    static Object shown(TasksTupleWithEpochs tasks) {
        Map<String, Object> active = new TreeMap<>();
        tasks.activeTasksWithEpochs().forEach((name, epochs) -> active.put(name, new TreeMap<>(epochs)));
        return List.of(active, sorted(tasks.standbyTasks()), sorted(tasks.warmupTasks()));
    }

    // ---- values

    static Map<String, Set<Integer>> sets(JsonNode given) {
        Map<String, Set<Integer>> sets = new HashMap<>();
        given.fields().forEachRemaining(entry -> {
            Set<Integer> numbers = new HashSet<>();
            entry.getValue().forEach(number -> numbers.add(number.asInt()));
            sets.put(entry.getKey(), numbers);
        });
        return sets;
    }

    static Map<String, Map<Integer, Long>> offsets(JsonNode given) {
        Map<String, Map<Integer, Long>> offsets = new HashMap<>();
        given.fields().forEachRemaining(entry -> entry.getValue().fields().forEachRemaining(task -> offsets
            .computeIfAbsent(entry.getKey(), name -> new HashMap<>()).put(Integer.valueOf(task.getKey()), task.getValue().asLong())));
        return offsets;
    }

    static Map<String, Object> sorted(Map<String, Set<Integer>> sets) {
        Map<String, Object> sorted = new TreeMap<>();
        sets.forEach((name, numbers) -> sorted.put(name, numbers.stream().sorted().toList()));
        return sorted;
    }

    static List<String> texts(JsonNode given) {
        List<String> texts = new ArrayList<>();
        given.forEach(text -> texts.add(text.asText()));
        return texts;
    }

    static List<Short> shorts(JsonNode given) {
        List<Short> numbers = new ArrayList<>();
        given.forEach(number -> numbers.add((short) number.asInt()));
        return numbers;
    }
}
