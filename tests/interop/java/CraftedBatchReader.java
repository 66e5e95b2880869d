import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads partitions of a topic up to an error: SERVERS TOPIC COUNT. A line per partition: offsets, then `ok`, or the causes. */
public final class CraftedBatchReader {
    static final int MOST = 12;

    public static void main(String[] arguments) {
        String topic = arguments[1];
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0], "enable.auto.commit", "false", "auto.offset.reset", "none",
            "fetch.max.wait.ms", "1", "max.poll.records", "1", "allow.auto.create.topics", "false");
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, bytes, bytes)) {
            for (int number = 0; number < Integer.parseInt(arguments[2]); number++)
                read(consumer, new TopicPartition(topic, number));
        }
    }

    static void read(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition) {
        consumer.assign(List.of(partition));
        consumer.seek(partition, 0);
        long end = consumer.endOffsets(List.of(partition)).get(partition);
        StringBuilder line = new StringBuilder();
        int count = 0;
        String outcome = "ok";
        long deadline = System.currentTimeMillis() + 10_000;
        try {
            while (consumer.position(partition) < end && count < MOST) {
                if (System.currentTimeMillis() > deadline) throw new RuntimeException("stands still");
                for (var record : consumer.poll(Duration.ofMillis(500))) {
                    count++;
                    line.append(record.offset()).append(record.key() == null ? "k" : "").append(record.value() == null ? "v" : "").append(' ');
                }
            }
        } catch (Throwable error) {
            outcome = "raises";
            for (Throwable cause = error; cause != null; cause = cause.getCause())
                outcome += " " + cause.getClass().getSimpleName();
        }
        System.out.println(line + (count >= MOST ? "again" : outcome));
    }
}
