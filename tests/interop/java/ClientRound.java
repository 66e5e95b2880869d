import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** One round of a client by kafka-clients: SERVERS TOPIC GROUP, as test_client_versions.py asks for it. */
public class ClientRound {
    static final int PARTITIONS = 3;
    static final int RECORDS = 30;
    static final long FIRST_MS = 1_600_000_000_000L;
    static final long BOUND_MS = 60_000;

    static String servers;
    static String topic;
    static String group;

    public static void main(String[] args) throws Exception {
        servers = args[0];
        topic = args[1];
        group = args[2];
        List<TopicPartition> partitions = new ArrayList<>();
        for (int index = 0; index < PARTITIONS; index++) partitions.add(new TopicPartition(topic, index));
        produce("none", 0, RECORDS / 2);
        produce("gzip", RECORDS / 2, RECORDS);
        try (KafkaConsumer<String, String> consumer = consumer(null)) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            read(consumer, "read");
            Map<TopicPartition, Long> times = new HashMap<>();
            for (TopicPartition partition : partitions) times.put(partition, FIRST_MS + RECORDS / 2);
            consumer.offsetsForTimes(times).forEach((partition, found) ->
                    System.out.println("at " + partition.partition() + " " + found.offset()));
            consumer.endOffsets(partitions).forEach((partition, end) ->
                    System.out.println("end " + partition.partition() + " " + end));
        }
        try (KafkaConsumer<String, String> consumer = consumer(group)) {
            consumer.subscribe(List.of(topic));
            read(consumer, "member");
            consumer.commitSync();
        }
        try (KafkaConsumer<String, String> consumer = consumer(group)) {
            consumer.committed(Set.copyOf(partitions)).forEach((partition, found) ->
                    System.out.println("committed " + partition.partition() + " " + found.offset()));
        }
    }

    static void produce(String codec, int from, int to) throws Exception {
        Map<String, Object> config = new HashMap<>(Map.of(
                "bootstrap.servers", servers, "linger.ms", 20, "compression.type", codec, "enable.idempotence", true));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int number = from; number < to; number++)
                sent.add(producer.send(
                        new ProducerRecord<>(topic, number % PARTITIONS, FIRST_MS + number, null, "" + number)));
        }
        for (int number = from; number < to; number++) {
            RecordMetadata written = sent.get(number - from).get();
            System.out.println("produced " + written.partition() + " " + written.offset() + " " + number);
        }
    }

    static KafkaConsumer<String, String> consumer(String group) {
        Map<String, Object> config = new HashMap<>(Map.of(
                "bootstrap.servers", servers, "auto.offset.reset", "earliest", "enable.auto.commit", "false"));
        if (group != null) config.put("group.id", group);
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    static void read(KafkaConsumer<String, String> consumer, String kind) {
        long deadline = System.currentTimeMillis() + BOUND_MS;
        int count = 0;
        while (count < RECORDS && System.currentTimeMillis() < deadline)
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                System.out.println(kind + " " + record.partition() + " " + record.offset() + " " + record.value());
                count++;
            }
    }
}
