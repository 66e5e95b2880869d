import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The cases of test_secured_clients.py by kafka-clients. */
public class SecuredRounds {
    static final int RECORDS = 3;
    static final int BOUND_MS = 20_000;
    static final int STAY_MS = 7_000;
    static final int PAUSE_MS = 250;
    static final String MODULES = "org.apache.kafka.common.security.";

    public static void main(String[] args) throws Exception {
        for (Map<String, String> asked : cases()) {
            String outcome;
            try {
                work(asked);
                outcome = "ok";
            } catch (Throwable error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                outcome = cause.getClass().getSimpleName() + " " + ("" + cause.getMessage()).replaceAll("\\s+", " ");
            }
            System.out.println(asked.get("case") + ": " + outcome);
        }
    }

    static List<Map<String, String>> cases() throws Exception {
        List<Map<String, String>> found = new ArrayList<>();
        found.add(new HashMap<>());
        BufferedReader reader = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line; (line = reader.readLine()) != null; ) {
            int at = line.indexOf('=');
            if (at < 0) found.add(new HashMap<>());
            else found.get(found.size() - 1).put(line.substring(0, at), line.substring(at + 1));
        }
        found.removeIf(Map::isEmpty);
        return found;
    }

    static Map<String, Object> settings(Map<String, String> asked) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", asked.get("servers"));
        settings.put("security.protocol", asked.get("protocol"));
        if (asked.containsKey("cafile")) {
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", asked.get("cafile"));
        }
        if (asked.containsKey("storefile")) {
            settings.put("ssl.keystore.type", "PEM");
            settings.put("ssl.keystore.location", asked.get("storefile"));
        }
        String mechanism = asked.get("mechanism");
        if (mechanism == null) return settings;
        settings.put("sasl.mechanism", mechanism);
        settings.put("sasl.jaas.config", MODULES + module(asked, mechanism) + ";");
        return settings;
    }

    static String module(Map<String, String> asked, String mechanism) {
        String login = " required username=\"" + asked.get("username") + "\" password=\"" + asked.get("password") + "\"";
        if (mechanism.equals("OAUTHBEARER")) return "oauthbearer.OAuthBearerLoginModule required" + claims(asked);
        if (mechanism.equals("PLAIN")) return "plain.PlainLoginModule" + login;
        return "scram.ScramLoginModule" + login + (asked.containsKey("tokenauth") ? " tokenauth=\"true\"" : "");
    }

    /** The client makes its own token. */
    static String claims(Map<String, String> asked) {
        String claim = asked.get("claim");
        return " unsecuredLoginStringClaim_" + claim + "=\"" + asked.get("username") + "\""
                + " unsecuredLoginPrincipalClaimName=\"" + claim + "\"";
    }

    static void work(Map<String, String> asked) throws Exception {
        String action = asked.get("do");
        if (action.equals("stay")) produce(asked, STAY_MS / PAUSE_MS, PAUSE_MS);
        if (action.equals("produce") || action.equals("round")) produce(asked, RECORDS, 0);
        if (action.equals("consume") || action.equals("round")) consume(asked);
    }

    static void produce(Map<String, String> asked, int number, int pauseMs) throws Exception {
        Map<String, Object> settings = settings(asked);
        settings.put("max.block.ms", BOUND_MS);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int index = 0; index < number; index++) {
                producer.send(new ProducerRecord<>(asked.get("topic"), asked.get("case"))).get(BOUND_MS, TimeUnit.MILLISECONDS);
                Thread.sleep(pauseMs);
            }
        }
    }

    static void consume(Map<String, String> asked) {
        Map<String, Object> settings = settings(asked);
        settings.put("group.id", asked.get("group"));
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(asked.get("topic")));
            long deadline = System.currentTimeMillis() + BOUND_MS;
            int count = 0;
            while (count < RECORDS) {
                if (System.currentTimeMillis() > deadline) throw new IllegalStateException(count + " records");
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500)))
                    if (asked.get("case").equals(record.value())) count++;
            }
            consumer.commitSync();
        }
    }
}
