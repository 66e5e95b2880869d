import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a share group: SERVERS GROUP TOPIC MODE COUNT. Prints "ready" with its first poll, and
 * "read PARTITION OFFSET DELIVERIES" for each record, until it has accepted COUNT records.
 *
 * MODE is implicit or explicit. An explicit member releases each record with an even offset once, and accepts
 * it after that.
 */
public class ShareMember {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[1]);
        properties.put("share.acknowledgement.mode", arguments[3]);
        boolean isExplicit = arguments[3].equals("explicit");
        int wanted = Integer.parseInt(arguments[4]), accepted = 0;
        try (KafkaShareConsumer<String, String> consumer =
                 new KafkaShareConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                if (error != null)
                    System.out.println("failed " + error);
            });
            consumer.subscribe(List.of(arguments[2]));
            System.out.println("ready");
            while (accepted < wanted) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    short deliveries = record.deliveryCount().orElse((short) 0);
                    System.out.println("read " + record.partition() + " " + record.offset() + " " + deliveries);
                    if (isExplicit && record.offset() % 2 == 0 && deliveries == 1) {
                        consumer.acknowledge(record, AcknowledgeType.RELEASE);
                        continue;
                    }
                    if (isExplicit)
                        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                    accepted++;
                }
                consumer.commitSync();
            }
        }
        System.out.println("accepted " + accepted);
        System.exit(0);
    }
}
