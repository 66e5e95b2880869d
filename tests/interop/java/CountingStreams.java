import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts the records of each key, exactly once: SERVERS APPLICATION SOURCE TARGET STATE_DIR [PROPERTIES]. The file
 * of properties has the login. The words of a record
 * are its keys, so they pass a repartition topic; the counts are in memory and in a changelog. Every count is
 * written to the target. Prints each state of the program; ends with SIGTERM.
 */
public class CountingStreams {
    public static void main(String[] arguments) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[2], Consumed.with(Serdes.Bytes(), Serdes.String()))
            .groupBy((key, value) -> value.split(" ")[0], Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(arguments[3], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings(arguments));
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("failed " + error);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(java.time.Duration.ofSeconds(30))));
        streams.start();
        Thread.currentThread().join();
    }

    static Properties settings(String[] arguments) throws Exception {
        Properties properties = new Properties();
        if (arguments.length > 5) {
            try (java.io.Reader login = new java.io.FileReader(arguments[5])) {
                properties.load(login);
            }
        }
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("application.id", arguments[1]);
        properties.put("state.dir", arguments[4]);
        properties.put("processing.guarantee", "exactly_once_v2");
        properties.put("commit.interval.ms", "100");
        properties.put("statestore.cache.max.bytes", "0");
        properties.put("num.stream.threads", "2");
        properties.put("replication.factor", "1");
        properties.put("consumer.session.timeout.ms", "6000");
        properties.put("consumer.heartbeat.interval.ms", "500");
        properties.put("consumer.auto.offset.reset", "earliest");
        properties.put("consumer.max.poll.records", "50");
        properties.put("producer.transaction.timeout.ms", "10000");
        return properties;
    }
}
