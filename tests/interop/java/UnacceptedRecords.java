import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a share group that does not accept everything: SERVERS GROUP TOPIC RECORDS DELIVERIES. It accepts
 * each third record of a partition, rejects the next one, and releases the one after that with each of its
 * DELIVERIES. It ends once all RECORDS have had their last one.
 */
public class UnacceptedRecords {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[1]);
        properties.put("share.acknowledgement.mode", "explicit");
        int left = Integer.parseInt(arguments[3]), limit = Integer.parseInt(arguments[4]);
        try (KafkaShareConsumer<byte[], byte[]> consumer =
                 new KafkaShareConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(arguments[2]));
            while (left > 0) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    short deliveries = record.deliveryCount().orElse((short) 0);
                    AcknowledgeType type = switch ((int) (record.offset() % 3)) {
                        case 0 -> AcknowledgeType.ACCEPT;
                        case 1 -> AcknowledgeType.REJECT;
                        default -> AcknowledgeType.RELEASE;
                    };
                    consumer.acknowledge(record, type);
                    if (type != AcknowledgeType.RELEASE || deliveries == limit)
                        left--;
                }
                consumer.commitSync();
            }
        }
        System.out.println("done");
        System.exit(0);
    }
}
