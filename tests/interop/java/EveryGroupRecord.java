import com.fasterxml.jackson.databind.JsonNode;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters;
import org.apache.kafka.tools.consumer.CoordinatorRecordMessageFormatter;

/**
 * Prints every kind of record of __consumer_offsets as Kafka's own formatters print theirs: those leave the
 * kinds of consumer and streams groups out.
 */
public class EveryGroupRecord extends CoordinatorRecordMessageFormatter {
    public EveryGroupRecord() {
        super(new GroupCoordinatorRecordSerde());
    }

    protected boolean isRecordTypeAllowed(short type) {
        return true;
    }

    protected JsonNode keyAsJson(ApiMessage key) {
        return CoordinatorRecordJsonConverters.writeRecordKeyAsJson(key);
    }

    protected JsonNode valueAsJson(ApiMessage value, short version) {
        return CoordinatorRecordJsonConverters.writeRecordValueAsJson(value, version);
    }
}
