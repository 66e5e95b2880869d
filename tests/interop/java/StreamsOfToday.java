import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.Stores;

/**
 * A program of Kafka Streams 4: SERVERS APPLICATION TOPOLOGY STATE_DIR KEY=VALUE... with further properties.
 * TOPOLOGY is "map" (words to upper), "count" (words to counts, by a repartition topic) or "join" (words with the
 * table lists, by a repartition topic, to joined). Prints each state of the program; ends with SIGTERM.
 */
public class StreamsOfToday {
    public static void main(String[] arguments) throws Exception {
        Properties properties = settings(arguments);
        KafkaStreams streams = new KafkaStreams(topology(arguments[2], properties), properties);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("failed " + error);
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(java.time.Duration.ofSeconds(30))));
        streams.start();
        Thread.currentThread().join();
    }

    static Topology topology(String name, Properties properties) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> words = builder.stream("words", Consumed.with(Serdes.String(), Serdes.String()));
        KStream<String, String> by_word = words.selectKey((key, value) -> value.split(" ")[0]);
        Produced<String, String> texts = Produced.with(Serdes.String(), Serdes.String());
        switch (name) {
            case "map" -> words.mapValues(value -> value.toUpperCase()).to("upper", texts);
            case "count" -> by_word.groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                    .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
                .toStream().mapValues(count -> Long.toString(count)).to("counts", texts);
            default -> by_word.join(
                builder.table("lists", Consumed.with(Serdes.String(), Serdes.String()),
                    Materialized.as(Stores.inMemoryKeyValueStore("listed"))),
                (value, listed) -> value + " " + listed, Joined.with(Serdes.String(), Serdes.String(), Serdes.String()))
                .to("joined", texts);
        }
        return builder.build(properties);
    }

    static Properties settings(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("application.id", arguments[1]);
        properties.put("state.dir", arguments[3]);
        properties.put("commit.interval.ms", "100");
        properties.put("statestore.cache.max.bytes", "0");
        properties.put("replication.factor", "1");
        properties.put("consumer.auto.offset.reset", "earliest");
        properties.put("consumer.max.poll.records", "50");
        properties.put("producer.transaction.timeout.ms", "10000");
        for (int i = 4; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        return properties;
    }
}
