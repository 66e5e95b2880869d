import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of one group, each in a thread: SERVERS GROUP TOPIC. They are started and stopped, and print their
 * events, as tests/interop/python/hosted_members.py says.
 */
public class HostedMembers {
    static final int BATCH = 25;

    public static void main(String[] arguments) throws Exception {
        Map<String, Member> members = new ConcurrentHashMap<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("start")) {
                Member member = new Member(words[1], words[2], arguments);
                members.put(words[1], member);
                member.start();
            } else {
                members.get(words[1]).isOver = true;
            }
        }
        members.values().forEach(member -> member.isOver = true);
        for (Member member : members.values())
            member.join();
        System.exit(0);
    }

    static class Member extends Thread implements ConsumerRebalanceListener {
        final String name;
        final String topic;
        final Properties settings = new Properties();
        final Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        KafkaConsumer<byte[], byte[]> consumer;
        Set<Integer> owned = Set.of();
        int taken = 0;
        volatile boolean isOver = false;

        Member(String name, String protocol, String[] arguments) {
            this.name = name;
            this.topic = arguments[2];
            settings.put("bootstrap.servers", arguments[0]);
            settings.put("group.id", arguments[1]);
            settings.put("client.id", name);
            settings.put("auto.offset.reset", "earliest");
            settings.put("enable.auto.commit", "false");
            settings.put("group.protocol", protocol);
            if (protocol.equals("classic")) {
                settings.put("partition.assignment.strategy", RangeAssignor.class.getName());
                settings.put("heartbeat.interval.ms", "300");
            }
        }

        @Override
        public void run() {
            try {
                consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                consumer.subscribe(List.of(topic), this);
                while (!isOver) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50)))
                        take(record);
                    if (taken >= BATCH)
                        commit();
                    tellOwned(consumer.assignment());
                }
                consumer.close();
                tell("left");
            } catch (Throwable error) {
                tell("failed " + error);
                error.printStackTrace();
            }
        }

        void take(ConsumerRecord<byte[], byte[]> record) {
            TopicPartition partition = new TopicPartition(record.topic(), record.partition());
            positions.put(partition, new OffsetAndMetadata(record.offset() + 1));
            taken++;
            tell("read " + record.partition() + " " + record.offset());
        }

        /** Commit the positions; without an answer they stay uncommitted. */
        void commit() {
            if (positions.isEmpty())
                return;
            try {
                consumer.commitSync(positions);
            } catch (KafkaException error) {
                System.err.println(name + " could not commit: " + error);
                return;
            }
            positions.forEach((partition, offset) ->
                tell("committed " + partition.partition() + " " + offset.offset()));
            positions.clear();
            taken = 0;
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            commit();
            onPartitionsLost(partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            positions.keySet().removeAll(partitions);
            Set<TopicPartition> kept = new HashSet<>(consumer.assignment());
            kept.removeAll(partitions);
            tellOwned(kept);
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) { }

        void tellOwned(Set<TopicPartition> partitions) {
            Set<Integer> now = partitions.stream().map(TopicPartition::partition).collect(Collectors.toCollection(TreeSet::new));
            if (!now.equals(owned)) {
                owned = now;
                tell("owns " + now.stream().map(String::valueOf).collect(Collectors.joining(" ")));
            }
        }

        void tell(String words) {
            synchronized (System.out) {
                System.out.println(System.nanoTime() + " " + name + " " + words);
                System.out.flush();
            }
        }
    }
}
