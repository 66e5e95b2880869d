import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.nio.file.*;
import java.util.*;
import java.util.stream.Collectors;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.*;
import org.apache.kafka.coordinator.group.assignor.*;
import org.apache.kafka.coordinator.group.modern.*;

/**
 * Runs the assignors of Kafka's group coordinator on cases from a file, one word list per line:
 * "case ASSIGNOR SUBSCRIPTIONTYPE", "topic NUMBER PARTITIONS", then those that can be assigned if not all can,
 * "member ID INSTANCE TOPICS OWNED" with "-" for nothing, topics by number and owned as "1:0,1;2:3", and "end".
 * Prints for each case "ID=1-0,1-1" of all members in the order of the file.
 */
public class ServerAssignorOracle {
    private static final Map<String, PartitionAssignor> ASSIGNORS =
        Map.of("uniform", new UniformAssignor(), "range", new RangeAssignor(), "simple", new SimpleAssignor());

    public static void main(String[] arguments) throws Exception {
        PartitionAssignor assignor = null;
        SubscriptionType type = null;
        Map<Uuid, Integer> topics = new HashMap<>();
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        Map<Uuid, Set<Integer>> assignable = new HashMap<>();
        PrintStream printed = new PrintStream(new BufferedOutputStream(System.out, 1 << 16));
        for (String line : (Iterable<String>) Files.lines(Path.of(arguments[0]))::iterator) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "case" -> {
                    assignor = ASSIGNORS.get(words[1]);
                    type = SubscriptionType.valueOf(words[2]);
                    topics.clear();
                    assignable.clear();
                    members = new LinkedHashMap<>();
                    owners = new HashMap<>();
                }
                case "topic" -> {
                    topics.put(id(words[1]), Integer.parseInt(words[2]));
                    if (words.length > 3)
                        assignable.put(id(words[1]), list(words[3], ",").stream().map(Integer::valueOf)
                            .collect(Collectors.toSet()));
                }
                case "member" -> members.put(words[1], member(words, owners));
                default -> printed.println(assign(assignor, type, topics, assignable, members, owners));
            }
        }
        printed.flush();
    }

    static Uuid id(String number) {
        return new Uuid(0, Long.parseLong(number));
    }

    static MemberSubscriptionAndAssignmentImpl member(String[] words, Map<Uuid, Map<Integer, String>> owners) {
        Set<Uuid> topics = new LinkedHashSet<>();
        for (String topic : list(words[3], ",")) topics.add(id(topic));
        Map<Uuid, Set<Integer>> owned = new TreeMap<>();
        for (String entry : list(words[4], ";")) {
            String[] parts = entry.split(":");
            Set<Integer> partitions = new TreeSet<>();
            for (String index : list(parts[1], ",")) {
                partitions.add(Integer.parseInt(index));
                owners.computeIfAbsent(id(parts[0]), __ -> new HashMap<>()).put(Integer.parseInt(index), words[1]);
            }
            owned.put(id(parts[0]), partitions);
        }
        Optional<String> instance = words[2].equals("-") ? Optional.empty() : Optional.of(words[2]);
        return new MemberSubscriptionAndAssignmentImpl(Optional.empty(), instance, topics, new Assignment(owned));
    }

    static List<String> list(String word, String between) {
        return word.equals("-") ? List.of() : List.of(word.split(between));
    }

    static String assign(PartitionAssignor assignor, SubscriptionType type, Map<Uuid, Integer> topics,
                         Map<Uuid, Set<Integer>> assignable,
                         Map<String, MemberSubscriptionAndAssignmentImpl> members,
                         Map<Uuid, Map<Integer, String>> owners) {
        SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
            public int numPartitions(Uuid topic) { return topics.getOrDefault(topic, -1); }
            public Set<String> racksForPartition(Uuid topic, int partition) { return Set.of(); }
        };
        Map<String, MemberAssignment> assigned =
            assignor.assign(new GroupSpecImpl(members, type, owners, assignable.isEmpty()
                ? Optional.empty() : Optional.of(assignable)), describer).members();
        return members.keySet().stream().map(name -> name + "=" + text(assigned.get(name)))
            .collect(Collectors.joining(" "));
    }

    static String text(MemberAssignment assignment) {
        if (assignment == null) return "";
        List<String> partitions = new ArrayList<>();
        new TreeMap<>(assignment.partitions()).forEach((topic, indexes) ->
            new TreeSet<>(indexes).forEach(index -> partitions.add(topic.getLeastSignificantBits() + "-" + index)));
        return String.join(",", partitions);
    }
}
