import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * A producer with transactions that does one step for each line: SERVERS ID. The lines are "begin",
 * "send TOPIC PARTITION VALUE", "offset GROUP TOPIC PARTITION OFFSET", "commit" and "abort"; each is answered with
 * "done", or "failed" and why.
 */
public class SteppedTransactions {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", arguments[1]);
        settings.put("max.block.ms", "60000");
        settings.put("metadata.max.age.ms", "1000");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (Producer<String, String> producer =
                 new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            for (String line = lines.readLine(); line != null; line = lines.readLine())
                answer(producer, line.split(" "));
        }
        System.exit(0);
    }

    static void answer(Producer<String, String> producer, String[] words) {
        try {
            step(producer, words);
            System.out.println("done");
        } catch (Exception error) {
            System.out.println("failed " + String.valueOf(error).replace('\n', ' '));
        }
        System.out.flush();
    }

    static void step(Producer<String, String> producer, String[] words) throws Exception {
        switch (words[0]) {
            case "begin" -> producer.beginTransaction();
            case "send" -> producer.send(new ProducerRecord<>(words[1], Integer.valueOf(words[2]), null, words[3])).get();
            case "offset" -> producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition(words[2], Integer.parseInt(words[3])),
                    new OffsetAndMetadata(Long.parseLong(words[4]))),
                new ConsumerGroupMetadata(words[1]));
            case "commit" -> producer.commitTransaction();
            default -> producer.abortTransaction();
        }
    }
}
