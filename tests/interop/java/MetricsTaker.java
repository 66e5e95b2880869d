import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

/** A reporter that takes what clients push: a broker of Apache Kafka serves client telemetry only with one. */
public class MetricsTaker implements MetricsReporter, ClientTelemetry {
    public ClientTelemetryReceiver clientReceiver() {
        return (context, payload) -> payload.data();
    }

    public void init(List<KafkaMetric> metrics) {}

    public void metricChange(KafkaMetric metric) {}

    public void metricRemoval(KafkaMetric metric) {}

    public void close() {}

    public void configure(Map<String, ?> configs) {}
}
