import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes records until its input ends. Its metrics are pushed as the broker asks. */
public class ClientTelemetry {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("client.id", "measured");
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            System.out.println("instance " + producer.clientInstanceId(Duration.ofSeconds(60)));
            while (System.in.available() == 0) {
                producer.send(new ProducerRecord<>("t", "v")).get();
                Thread.sleep(20);
            }
        }
        System.out.println("closed");
    }
}
