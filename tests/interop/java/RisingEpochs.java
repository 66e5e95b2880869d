import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * Transactions one after the other under one id: SERVERS. Prints after each of them how it ended and by how much
 * the epoch of the producer has risen, and at last what a reader of committed records gets.
 */
public class RisingEpochs {
    static final String ID = "rising";
    static Admin admin;
    static String servers;
    static int first = -1;

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        admin = Admin.create(Map.of("bootstrap.servers", servers));
        admin.createTopics(List.of(new NewTopic("a", 3, (short) 1), new NewTopic("b", 1, (short) 1))).all().get();
        Thread.sleep(1000);
        try (Producer<String, String> producer = producer(60_000)) {
            producer.initTransactions();
            report("initialized");
            for (int number = 0; number < 6; number++) round(producer, number);
            producer.beginTransaction();
            producer.abortTransaction();
            report("aborted without records");
            producer.beginTransaction();
            producer.commitTransaction();
            report("committed without records");
            fence(producer);
        }
        timeOut();
        read();
        admin.close();
    }

    static void round(Producer<String, String> producer, int number) throws Exception {
        boolean commits = number % 3 != 1;
        producer.beginTransaction();
        for (int partition = 0; partition < 3; partition++) send(producer, "a", partition, commits, number);
        if (number % 2 == 0) {
            var offsets = Map.of(new TopicPartition("b", 0), new OffsetAndMetadata(number));
            producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata("g"));
        } else {
            send(producer, "b", 0, commits, number);
        }
        if (commits) producer.commitTransaction(); else producer.abortTransaction();
        report((commits ? "committed " : "aborted ") + number);
    }

    static void send(Producer<String, String> producer, String topic, int partition, boolean commits, int number) {
        producer.send(new ProducerRecord<>(topic, partition, null, (commits ? "kept-" : "dropped-") + number));
    }

    static void fence(Producer<String, String> before) throws Exception {
        before.beginTransaction();
        send(before, "a", 0, false, 100);
        before.flush();
        try (Producer<String, String> after = producer(60_000)) {
            after.initTransactions();
            System.out.println("fenced " + failure(before::commitTransaction));
            after.beginTransaction();
            send(after, "a", 0, true, 101);
            after.commitTransaction();
        }
    }

    static void timeOut() throws Exception {
        try (Producer<String, String> producer = producer(1_000)) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, "a", 1, false, 200);
            producer.flush();
            Thread.sleep(6_000);
            System.out.println("committed too late " + failure(producer::commitTransaction));
            System.out.println("aborted too late " + failure(producer::abortTransaction));
        }
        try (Producer<String, String> producer = producer(1_000)) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, "a", 1, false, 201);
            producer.flush();
            Thread.sleep(6_000);
            System.out.println("aborted after the timeout " + failure(producer::abortTransaction));
            System.out.println("and on " + failure(() -> {
                producer.beginTransaction();
                send(producer, "a", 1, true, 202);
                producer.commitTransaction();
            }));
        }
    }

    static void read() throws Exception {
        Map<String, Integer> counts = new TreeMap<>();
        try (Consumer<String, String> consumer = new KafkaConsumer<>(Map.of(
                "bootstrap.servers", servers, "isolation.level", "read_committed", "auto.offset.reset", "earliest"),
                new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> all = new ArrayList<>();
            for (int partition = 0; partition < 3; partition++) all.add(new TopicPartition("a", partition));
            all.add(new TopicPartition("b", 0));
            consumer.assign(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            while (all.stream().anyMatch(each -> consumer.position(each) < ends.get(each)))
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(300)))
                    counts.merge(each.value(), 1, Integer::sum);
        }
        System.out.println("read " + counts);
        System.out.println("offset " + admin.listConsumerGroupOffsets("g").partitionsToOffsetAndMetadata().get()
            .get(new TopicPartition("b", 0)).offset());
    }

    static Producer<String, String> producer(int timeoutMs) {
        return new KafkaProducer<>(Map.of("bootstrap.servers", servers, "transactional.id", ID,
            "transaction.timeout.ms", timeoutMs, "linger.ms", 5), new StringSerializer(), new StringSerializer());
    }

    static void report(String what) throws Exception {
        TransactionDescription found = null;
        for (int count = 0; count < 100; count++) {
            found = admin.describeTransactions(List.of(ID)).description(ID).get();
            if (!found.state().toString().startsWith("Prepare")) break;
            Thread.sleep(50);
        }
        if (first < 0) first = found.producerEpoch();
        System.out.println(what + ": " + found.state() + " +" + (found.producerEpoch() - first));
    }

    interface Step { void run() throws Exception; }

    static String failure(Step step) {
        try {
            step.run();
            return "fine";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            Throwable cause = error.getCause();
            return error.getClass().getSimpleName() + (cause == null ? "" : " of " + cause.getClass().getSimpleName());
        }
    }
}
