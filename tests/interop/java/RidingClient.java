import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A producer and a member of a group: SERVERS TOPIC GROUP. Writes the numbers 0, 1, 2 … to the partitions 0, 1, 2 in
 * turn, each when the one before it is acknowledged, and prints "wrote PARTITION NUMBER" and "read PARTITION NUMBER".
 * When standard input ends it reads what was written, and leaves. An exception ends it with "error" and status 1.
 */
public class RidingClient {
    static final int PARTITIONS = 3;
    static final long PAUSE_MS = 10;
    static final long BOUND_S = 150;
    static volatile boolean stopped = false;

    interface Work {
        void go() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Properties common = new Properties();
        common.put("bootstrap.servers", arguments[0]);
        String topic = arguments[1];
        long[] written = {0};
        start(() -> {
            while (System.in.read() >= 0) { }
            stopped = true;
        });
        Thread writer = start(() -> written[0] = write(common, topic));
        read(common, topic, arguments[2], writer, written);
        System.exit(0);
    }

    static long write(Properties common, String topic) throws Exception {
        long number = 0;
        try (KafkaProducer<String, String> producer =
                 new KafkaProducer<>(common, new StringSerializer(), new StringSerializer())) {
            for (; !stopped; number++) {
                int partition = (int) (number % PARTITIONS);
                producer.send(new ProducerRecord<>(topic, partition, null, "" + number)).get(BOUND_S, TimeUnit.SECONDS);
                say("wrote " + partition + " " + number);
                Thread.sleep(PAUSE_MS);
            }
        }
        return number;
    }

    static void read(Properties common, String topic, String group, Thread writer, long[] written) throws Exception {
        Properties properties = new Properties();
        properties.putAll(common);
        properties.put("group.id", group);
        properties.put("auto.offset.reset", "earliest");
        long read = 0;
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (writer.isAlive() || read < written[0]) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    say("read " + record.partition() + " " + record.value());
                    read++;
                }
            }
            consumer.commitSync();
        } catch (Exception error) {
            fail(error);
        }
    }

    static Thread start(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.go();
            } catch (Exception error) {
                fail(error);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    static void fail(Exception error) {
        say("error " + error);
        error.printStackTrace();
        System.exit(1);
    }

    static synchronized void say(String line) {
        System.out.println(line);
    }
}
