import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;

/**
 * A member of a streams group (KIP-1071) that counts records by key: SERVERS APPLICATION SOURCE STATE_DIR. The
 * counts have a changelog. Prints each state of the program; ends with SIGTERM.
 */
public class StreamsGroupMember {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("application.id", arguments[1]);
        properties.put("client.id", "counter");
        properties.put("group.protocol", "streams");
        properties.put("state.dir", arguments[3]);
        properties.put("commit.interval.ms", "100");
        properties.put("num.stream.threads", "1");
        properties.put("replication.factor", "1");
        properties.put("default.key.serde", Serdes.StringSerde.class);
        properties.put("default.value.serde", Serdes.StringSerde.class);
        properties.put("auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[2]).groupByKey().count();
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(java.time.Duration.ofSeconds(30))));
        streams.start();
        Thread.currentThread().join();
    }
}
