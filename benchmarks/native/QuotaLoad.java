import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Clients that take as much as their quotas allow: SERVERS BEGIN_MS FROM_MS UNTIL_MS SIZE, then ROLE,CLIENT_ID,TOPIC of
 * each. They begin at BEGIN_MS of the wall clock, count values of SIZE bytes between the other two times, and print
 * "CLIENT_ID BYTES" each. Those with the role "request" count requests.
 */
public class QuotaLoad {
    static final int ASKED_AT_ONCE = 4;
    static long fromMs;
    static long untilMs;
    static int size;

    static void count(AtomicLong counted, long amount) {
        long nowMs = System.currentTimeMillis();
        if (nowMs >= fromMs && nowMs < untilMs) counted.addAndGet(amount);
    }

    static boolean goesOn() {
        return System.currentTimeMillis() < untilMs;
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        long beginMs = Long.parseLong(arguments[1]);
        fromMs = Long.parseLong(arguments[2]);
        untilMs = Long.parseLong(arguments[3]);
        size = Integer.parseInt(arguments[4]);
        List<Runnable> loads = new ArrayList<>();
        List<String> names = new ArrayList<>();
        List<AtomicLong> counts = new ArrayList<>();
        for (int i = 5; i < arguments.length; i++) {
            String[] parts = arguments[i].split(",");
            AtomicLong counted = new AtomicLong();
            names.add(parts[1]);
            counts.add(counted);
            Properties settings = new Properties();
            settings.put("bootstrap.servers", servers);
            settings.put("client.id", parts[1]);
            switch (parts[0]) {
                case "produce" -> loads.add(producing(settings, parts[2], counted));
                case "fetch" -> loads.add(fetching(settings, parts[2], counted));
                default -> loads.add(asking(settings, parts[2], counted));
            }
        }
        Thread.sleep(Math.max(0, beginMs - System.currentTimeMillis()));
        for (Runnable load : loads) {
            Thread thread = new Thread(load);
            thread.setDaemon(true);
            thread.start();
        }
        Thread.sleep(Math.max(0, untilMs - System.currentTimeMillis()));
        for (int i = 0; i < names.size(); i++) System.out.println(names.get(i) + " " + counts.get(i).get());
        Runtime.getRuntime().halt(0);
    }

    static Runnable producing(Properties settings, String topic, AtomicLong counted) {
        settings.put("acks", "1");
        settings.put("buffer.memory", "262144");
        settings.put("max.block.ms", "600000");
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        byte[] value = new byte[size];
        return () -> {
            while (goesOn()) {
                producer.send(new ProducerRecord<>(topic, 0, null, value), (written, error) -> {
                    if (error == null) count(counted, size);
                });
            }
        };
    }

    static Runnable fetching(Properties settings, String topic, AtomicLong counted) {
        settings.put("max.partition.fetch.bytes", "32768");
        settings.put("fetch.max.bytes", "32768");
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        TopicPartition partition = new TopicPartition(topic, 0);
        return () -> {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long last = consumer.endOffsets(List.of(partition)).get(partition) - 1;
            while (goesOn()) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    count(counted, record.value().length);
                    if (record.offset() == last) consumer.seek(partition, 0);
                }
            }
        };
    }

    static Runnable asking(Properties settings, String topic, AtomicLong counted) {
        Admin admin = Admin.create(settings);
        Runnable ask = () -> {
            while (goesOn()) {
                try {
                    admin.describeTopics(List.of(topic)).allTopicNames().get();
                    count(counted, 1);
                } catch (Exception error) {
                    System.err.println(error);
                }
            }
        };
        return () -> {
            for (int i = 0; i < ASKED_AT_ONCE; i++) {
                Thread thread = new Thread(ask);
                thread.setDaemon(true);
                thread.start();
            }
        };
    }
}
