import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a group of Kafka 4, by the consumer protocol: SERVERS GROUP SUBSCRIPTION SETTING=VALUE,…
 *
 * A subscription that begins with "^" is an expression for the coordinator. It prints "owns PARTITIONS" when
 * that changes and "read PARTITION OFFSET" for each record, until standard input ends; then it leaves.
 */
public class TodaysMember {
    static final Set<Integer> OWNED = new TreeSet<>();

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[1]);
        properties.put("group.protocol", "consumer");
        properties.put("auto.offset.reset", "earliest");
        properties.put("auto.commit.interval.ms", "500");
        for (String setting : arguments[3].split(",")) {
            String[] parts = setting.split("=", 2);
            properties.put(parts[0], parts[1]);
        }
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
            if (arguments[2].startsWith("^"))
                consumer.subscribe(new SubscriptionPattern(arguments[2]), new Listener());
            else
                consumer.subscribe(List.of(arguments[2]), new Listener());
            while (running.get()) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100)))
                    System.out.println("read " + record.partition() + " " + record.offset());
            }
        }
        System.exit(0);
    }

    static class Listener implements ConsumerRebalanceListener {
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            partitions.forEach(partition -> OWNED.remove(partition.partition()));
            tell();
        }

        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            partitions.forEach(partition -> OWNED.add(partition.partition()));
            tell();
        }

        void tell() {
            System.out.println("owns " + OWNED.stream().map(String::valueOf).collect(Collectors.joining(" ")));
        }
    }
}
