import java.io.FileInputStream;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Sends one record with the properties of a file, and prints its topic: for clients from 0.9 on. */
public final class OneRecord {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            properties.load(file);
        }
        properties.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<byte[], byte[]>(properties);
        try {
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<byte[], byte[]>(arguments[1], new byte[] {1});
            System.out.println(producer.send(record).get(60, TimeUnit.SECONDS).topic());
        } finally {
            producer.close();
        }
    }
}
