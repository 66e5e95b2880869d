import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Writes the batches that test_drawn_records.py prints, by kafka-clients: SERVERS TOPIC. */
public class DrawnRecords {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        KafkaProducer<byte[], byte[]> producer = null;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("batch")) {
                if (producer != null) producer.close();
                producer = producer(args[0], words[1]);
                continue;
            }
            List<Header> headers = new ArrayList<>();
            for (int at = 3; at < words.length; at += 2)
                headers.add(new RecordHeader(
                        new String(bytes(words[at]), StandardCharsets.UTF_8), bytes(words[at + 1])));
            sent.add(producer.send(new ProducerRecord<>(
                    args[1], 0, Long.parseLong(words[0]), bytes(words[1]), bytes(words[2]), headers)));
        }
        producer.close();
        for (Future<RecordMetadata> written : sent) written.get();
        System.out.println("written " + sent.size());
    }

    static KafkaProducer<byte[], byte[]> producer(String servers, String codec) {
        Map<String, Object> config = new HashMap<>(Map.of(
                "bootstrap.servers", servers, "linger.ms", 10_000, "batch.size", 900_000, "compression.type", codec));
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static byte[] bytes(String word) {
        return word.equals("-") ? null : HexFormat.of().parseHex(word.substring(1));
    }
}
