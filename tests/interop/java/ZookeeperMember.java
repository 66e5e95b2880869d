import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.KafkaStream;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/**
 * A member of a group that shares partitions through ZooKeeper, in the words of Apache Kafka 1.1: prints
 * "joined", and "topic partition offset value" for every record. Standard input takes "commit" (answered with
 * "committed"); its end shuts the member down.
 *
 * <p>Arguments: topic (or "filter:regex"), number of streams, and settings as key=value.
 */
public class ZookeeperMember {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (int at = 2; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(settings));
        List<Thread> threads = new ArrayList<>();
        for (KafkaStream<byte[], byte[]> stream : streams(connector, arguments[0], Integer.parseInt(arguments[1]))) {
            Thread thread = new Thread(() -> print(stream));
            thread.start();
            threads.add(thread);
        }
        OUT.println("joined");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.equals("commit")) {
                connector.commitOffsets();
                OUT.println("committed");
            }
        }
        connector.shutdown();
        for (Thread thread : threads) {
            thread.join();
        }
        OUT.println("left");
    }

    static List<KafkaStream<byte[], byte[]>> streams(ConsumerConnector connector, String topic, int count) {
        if (topic.startsWith("filter:")) {
            return connector.createMessageStreamsByFilter(new Whitelist(topic.substring(7)), count);
        }
        return connector.createMessageStreams(Map.of(topic, count)).get(topic);
    }

    static void print(KafkaStream<byte[], byte[]> stream) {
        ConsumerIterator<byte[], byte[]> records = stream.iterator();
        while (records.hasNext()) {
            MessageAndMetadata<byte[], byte[]> record = records.next();
            String value = new String(record.message(), StandardCharsets.UTF_8);
            OUT.println(record.topic() + " " + record.partition() + " " + record.offset() + " " + value);
        }
    }
}
