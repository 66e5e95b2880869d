import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.common.*;

/**
 * Runs the Java client's assignors on cases from a file, one word list per line:
 * "case ASSIGNOR", "topic NAME RACKS;RACKS;..." with the racks of each partition separated by commas ("-" for none),
 * "member ID GENERATION RACK INSTANCE TOPICS OWNED USERDATA" with "-" for nothing, and "end".
 * Prints for each case "ID=PARTITIONS" of all members, sorted, or the name of what was thrown.
 */
public class AssignorOracle {
    public static void main(String[] arguments) throws Exception {
        ConsumerPartitionAssignor assignor = null;
        Map<String, List<List<String>>> topics = new HashMap<>();
        Map<String, Subscription> members = new HashMap<>();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "case" -> {
                    assignor = assignor(words[1]);
                    topics.clear();
                    members = new HashMap<>();
                }
                case "topic" -> topics.put(words[1], Arrays.stream(words[2].split(";"))
                    .map(AssignorOracle::list).collect(Collectors.toList()));
                case "member" -> members.put(words[1], member(words));
                default -> System.out.println(assign(assignor, topics, members));
            }
        }
    }

    static String assign(ConsumerPartitionAssignor assignor, Map<String, List<List<String>>> topics,
                         Map<String, Subscription> members) {
        try {
            return new TreeMap<>(assignor.assign(cluster(topics), new GroupSubscription(members)).groupAssignment())
                .entrySet().stream().map(e -> e.getKey() + "=" + e.getValue().partitions().stream()
                    .sorted(Comparator.comparing(TopicPartition::topic).thenComparing(TopicPartition::partition))
                    .map(TopicPartition::toString).collect(Collectors.joining(",")))
                .collect(Collectors.joining(" "));
        } catch (RuntimeException error) {
            return error.getClass().getSimpleName();
        }
    }

    static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
    }

    static List<String> list(String word) {
        return word.equals("-") ? List.of() : List.of(word.split(","));
    }

    static Subscription member(String[] words) {
        List<TopicPartition> owned = list(words[6]).stream().map(one -> {
            int colon = one.lastIndexOf(':');
            return new TopicPartition(one.substring(0, colon), Integer.parseInt(one.substring(colon + 1)));
        }).collect(Collectors.toList());
        ByteBuffer data = words[7].equals("-") ? null : ByteBuffer.wrap(HexFormat.of().parseHex(words[7]));
        Optional<String> rack = words[3].equals("-") ? Optional.empty() : Optional.of(words[3]);
        Subscription subscription =
            new Subscription(list(words[5]), data, owned, Integer.parseInt(words[2]), rack);
        subscription.setGroupInstanceId(words[4].equals("-") ? Optional.empty() : Optional.of(words[4]));
        return subscription;
    }

    static Cluster cluster(Map<String, List<List<String>>> topics) {
        Map<String, Node> nodes = new TreeMap<>();
        List<PartitionInfo> partitions = new ArrayList<>();
        topics.forEach((topic, listed) -> {
            for (int i = 0; i < listed.size(); i++) {
                Node[] replicas = listed.get(i).stream().map(rack -> nodes.computeIfAbsent(rack,
                    r -> new Node(nodes.size() + 1, "host", 9092, r))).toArray(Node[]::new);
                partitions.add(new PartitionInfo(topic, i, replicas.length > 0 ? replicas[0] : Node.noNode(), replicas, replicas));
            }
        });
        return new Cluster("id", new ArrayList<>(nodes.values()), partitions, Set.of(), Set.of());
    }
}
