import java.io.*;
import java.nio.file.*;
import java.time.*;
import java.util.*;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Members of share groups and of consumer groups in one process: SERVERS TOPIC FOLDER.
 *
 * Each line of standard input is "start NAME GROUP share-explicit|share-implicit|consumer" or "stop NAME". At its
 * end all members leave, and the process ends. Each member has a journal FOLDER/NAME.journal, whose lines are
 * those of tests/system/groups_member.py.
 */
public class ChaosMembers {
    static String servers, topic, folder;
    static final Map<String, Member> members = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        topic = arguments[1];
        folder = arguments[2];
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.split(" ");
            Member before = members.get(words[1]);
            if (words[0].equals("start")) {
                Member member = new Member(words[1], words[2], words[3], before);
                members.put(words[1], member);
                member.start();
            } else
                before.running.set(false);
        }
        members.values().forEach(member -> member.running.set(false));
        for (Member member : members.values())
            member.join();
        System.exit(0);
    }

    static class Member extends Thread {
        static final int RELEASED_OF = 16;
        final AtomicBoolean running = new AtomicBoolean(true);
        final String group, kind;
        final Member before;
        final Set<String> released = new HashSet<>();
        PrintWriter journal;

        Member(String name, String group, String kind, Member before) {
            super(name);
            this.group = group;
            this.kind = kind;
            this.before = before;
        }

        void note(Object... words) {
            Instant now = Instant.now();
            StringBuilder line = new StringBuilder();
            line.append(now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000);
            for (Object word : words)
                line.append(' ').append(word);
            journal.println(line);
        }

        public void run() {
            try {
                if (before != null)
                    before.join();
                journal = new PrintWriter(new FileWriter(folder + "/" + getName() + ".journal", true), true);
                while (running.get()) {
                    try {
                        note("began");
                        if (kind.equals("consumer"))
                            consume();
                        else
                            share(kind.equals("share-explicit"));
                    } catch (RuntimeException error) {
                        note("failed", String.valueOf(error).replace('\n', ' '));
                        Thread.sleep(500);
                    }
                }
                note("left");
                journal.close();
            } catch (Exception error) {
                error.printStackTrace();
                System.exit(1);
            }
        }

        Properties properties() {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", servers);
            properties.put("group.id", group);
            properties.put("client.id", getName());
            properties.put("reconnect.backoff.ms", "50");
            properties.put("reconnect.backoff.max.ms", "200");
            properties.put("request.timeout.ms", "5000");
            properties.put("default.api.timeout.ms", "20000");
            properties.put("metadata.max.age.ms", "2000");
            return properties;
        }

        void share(boolean isExplicit) {
            Properties properties = properties();
            properties.put("share.acknowledgement.mode", isExplicit ? "explicit" : "implicit");
            try (KafkaShareConsumer<String, String> consumer =
                     new KafkaShareConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
                consumer.setAcknowledgementCommitCallback((offsets, error) -> offsets.forEach((partition, some) -> {
                    for (long offset : some)
                        answered(partition.partition(), offset, error);
                }));
                consumer.subscribe(List.of(topic));
                while (running.get()) {
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                        String[] value = record.value().split(" ", 3);
                        short deliveries = record.deliveryCount().get();
                        note("given", record.partition(), record.offset(), deliveries, value[0], value[1]);
                        if (isExplicit)
                            acknowledge(consumer, record, deliveries == 1);
                    }
                    if (isExplicit)
                        consumer.commitSync();
                }
            }
        }

        void acknowledge(
            KafkaShareConsumer<String, String> consumer, ConsumerRecord<String, String> record, boolean isFirst
        ) {
            boolean isReleased = isFirst && record.offset() % RELEASED_OF == 0;
            if (isReleased) {
                released.add(record.partition() + " " + record.offset());
                note("released", record.partition(), record.offset());
            }
            consumer.acknowledge(record, isReleased ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
        }

        void answered(int partition, long offset, Exception error) {
            if (released.remove(partition + " " + offset))
                return;
            if (error == null)
                note("confirmed", partition, offset);
            else
                note("refused", partition, offset, error.getClass().getSimpleName());
        }

        void consume() {
            Properties properties = properties();
            properties.put("group.protocol", "consumer");
            properties.put("enable.auto.commit", "false");
            properties.put("auto.offset.reset", "earliest");
            try (KafkaConsumer<String, String> consumer =
                     new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(List.of(topic), new Listener());
                while (running.get()) {
                    Map<TopicPartition, OffsetAndMetadata> read = new HashMap<>();
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                        String[] value = record.value().split(" ", 3);
                        note("read", record.partition(), record.offset(), value[0], value[1]);
                        read.put(
                            new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1)
                        );
                    }
                    if (!read.isEmpty())
                        commit(consumer, read);
                }
            }
        }

        void commit(KafkaConsumer<String, String> consumer, Map<TopicPartition, OffsetAndMetadata> read) {
            try {
                consumer.commitSync(read);
            } catch (RuntimeException error) {  // the next owner, or the next commit, goes on from before
                note("uncommitted", error.getClass().getSimpleName());
                return;
            }
            read.forEach((partition, next) -> note("committed", partition.partition(), next.offset()));
        }

        class Listener implements ConsumerRebalanceListener {
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                partitions.forEach(partition -> note("assigned", partition.partition()));
            }

            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                partitions.forEach(partition -> note("revoked", partition.partition()));
            }

            public void onPartitionsLost(Collection<TopicPartition> partitions) {
                partitions.forEach(partition -> note("lost", partition.partition()));
            }
        }
    }
}
