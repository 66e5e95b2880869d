import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a group: SERVERS GROUP TOPIC ASSIGNOR. An assignor "consumer:NAME" is the coordinator's, by the
 * consumer protocol. Prints "owns PARTITIONS" when that changes and
 * "read PARTITION OFFSET" for each record, until standard input ends; then it leaves.
 */
public class GroupMember {
    static final Set<TopicPartition> OWNED =
        new TreeSet<>(Comparator.comparing(TopicPartition::topic).thenComparing(TopicPartition::partition));

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[1]);
        properties.put("auto.offset.reset", "earliest");
        if (arguments[3].startsWith("consumer:")) {
            properties.put("group.protocol", "consumer");
            properties.put("group.remote.assignor", arguments[3].substring("consumer:".length()));
        } else {
            properties.put("partition.assignment.strategy", assignor(arguments[3]));
            properties.put("session.timeout.ms", "6000");
            properties.put("heartbeat.interval.ms", "500");
        }
        properties.put("auto.commit.interval.ms", "500");
        properties.put("metadata.max.age.ms", "1000");
        AtomicBoolean running = new AtomicBoolean(true);
        Thread stopper = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (Exception error) {
                error.printStackTrace();
            }
            running.set(false);
        });
        stopper.setDaemon(true);
        stopper.start();
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[2]), new Listener());
            while (running.get()) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100)))
                    System.out.println("read " + record.partition() + " " + record.offset());
            }
        }
        System.exit(0);
    }

    static String assignor(String name) {
        return "org.apache.kafka.clients.consumer." + switch (name) {
            case "range" -> "RangeAssignor";
            case "roundrobin" -> "RoundRobinAssignor";
            case "sticky" -> "StickyAssignor";
            default -> "CooperativeStickyAssignor";
        };
    }

    static class Listener implements ConsumerRebalanceListener {
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            OWNED.removeAll(partitions);
            tell();
        }

        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            OWNED.addAll(partitions);
            tell();
        }

        void tell() {
            System.out.println("owns " + OWNED.stream().map(one -> "" + one.partition()).collect(Collectors.joining(" ")));
        }
    }
}
