import java.io.FileReader;
import java.io.Reader;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * Copies a topic exactly once: SERVERS SOURCE TARGET GROUP TRANSACTIONAL_ID SESSION_MS [PROPERTIES]. What it prints
 * and how it ends is as in tests/system/transactions_worker.py. PROPERTIES is a file with a login.
 */
public class TransactionalCopier {
    static final AtomicBoolean RUNNING = new AtomicBoolean(true);
    static final Random CHANCE = new Random();
    static final Properties LOGIN = new Properties();

    public static void main(String[] arguments) throws Exception {
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            RUNNING.set(false);
            try {
                main.join(60_000);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
        String transactionalId = arguments[4];
        if (arguments.length > 6) {
            try (Reader file = new FileReader(arguments[6])) {
                LOGIN.load(file);
            }
        }
        try (KafkaProducer<byte[], byte[]> producer = producer(arguments[0], transactionalId);
             KafkaConsumer<byte[], byte[]> consumer = consumer(arguments[0], arguments[3], arguments[5])) {
            producer.initTransactions();
            consumer.subscribe(List.of(arguments[1]));
            System.out.println("ready");
            while (RUNNING.get()) {
                ConsumerRecords<byte[], byte[]> batch = consumer.poll(Duration.ofMillis(300));
                if (!batch.isEmpty()) copy(batch, arguments[2], producer, consumer);
            }
        } catch (Exception error) {
            System.out.println("failed " + error.getClass().getSimpleName() + " " + error.getMessage());
            Runtime.getRuntime().halt(3);
        }
    }

    static void copy(ConsumerRecords<byte[], byte[]> batch, String target, KafkaProducer<byte[], byte[]> producer,
                     KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        System.out.println("begun " + batch.count());
        producer.beginTransaction();
        try {
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (ConsumerRecord<byte[], byte[]> each : batch) {
                byte[] value = image(each.offset(), each.value());
                producer.send(new ProducerRecord<>(target, each.partition(), each.key(), value));
                offsets.put(new TopicPartition(each.topic(), each.partition()), new OffsetAndMetadata(each.offset() + 1));
            }
            producer.flush();
            Thread.sleep(CHANCE.nextInt(100));
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            producer.commitTransaction();
        } catch (RuntimeException error) {
            try {
                producer.abortTransaction();
            } catch (RuntimeException fatal) {
                System.out.println("cannot abort " + fatal.getClass().getSimpleName());
            }
            throw error;
        }
        System.out.println("committed " + batch.count());
    }

    static byte[] image(long offset, byte[] value) {
        byte[] before = (offset + "@").getBytes();
        byte[] all = Arrays.copyOf(before, before.length + value.length);
        System.arraycopy(value, 0, all, before.length, value.length);
        return all;
    }

    static KafkaProducer<byte[], byte[]> producer(String servers, String transactionalId) {
        Properties properties = common(servers);
        properties.put("transactional.id", transactionalId);
        properties.put("transaction.timeout.ms", "15000");
        properties.put("request.timeout.ms", "5000");
        properties.put("delivery.timeout.ms", "60000");
        properties.put("max.block.ms", "60000");
        properties.put("linger.ms", "5");
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String servers, String group, String sessionMs) {
        Properties properties = common(servers);
        properties.put("group.id", group);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("isolation.level", "read_committed");
        properties.put("session.timeout.ms", sessionMs);
        properties.put("heartbeat.interval.ms", "500");
        properties.put("max.poll.records", "50");
        properties.put("fetch.max.wait.ms", "100");
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static Properties common(String servers) {
        Properties properties = new Properties();
        properties.putAll(LOGIN);
        properties.put("bootstrap.servers", servers);
        properties.put("metadata.max.age.ms", "2000");
        properties.put("reconnect.backoff.ms", "20");
        properties.put("reconnect.backoff.max.ms", "200");
        return properties;
    }
}
