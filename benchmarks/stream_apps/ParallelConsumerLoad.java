import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Confluent's Parallel Consumer in key order, measured as meter.py measures: same load, same result file. */
public class ParallelConsumerLoad {
    static final long WARM_UP_LIMIT_MS = 2000;
    static final AtomicInteger count = new AtomicInteger();
    static final AtomicInteger disordered = new AtomicInteger();
    static final ConcurrentHashMap<String, Long> last = new ConcurrentHashMap<>();
    static final ConcurrentHashMap<String, Boolean> running = new ConcurrentHashMap<>();
    static double[] latenciesMs;
    static Path folder;
    static boolean noop;
    static int warmUp, total, firstCount = -1;
    static long limitMs, firstNs, firstCpuNs;

    public static void main(String[] given) throws Exception {
        String servers = given[0], topic = given[1], group = given[2];
        noop = Boolean.parseBoolean(given[3]);
        warmUp = Integer.parseInt(given[4]);
        total = Integer.parseInt(given[5]);
        limitMs = (long) (Double.parseDouble(given[6]) * 1000);
        int concurrency = Integer.parseInt(given[7]);
        folder = Path.of(given[8]);
        latenciesMs = new double[noop ? 0 : total];
        ParallelStreamProcessor<String, byte[]> processor = ParallelStreamProcessor.createEosStreamProcessor(
            ParallelConsumerOptions.<String, byte[]>builder()
                .consumer(consumer(servers, group))
                .ordering(ProcessingOrder.KEY)
                .maxConcurrency(concurrency)
                .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                .commitInterval(Duration.ofSeconds(1))
                .build());
        processor.subscribe(List.of(topic));
        processor.poll(context -> handle(context.getSingleConsumerRecord()));
        Thread.sleep(Long.MAX_VALUE);
    }

    static KafkaConsumer<String, byte[]> consumer(String servers, String group) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new ByteArrayDeserializer());
    }

    static void handle(ConsumerRecord<String, byte[]> record) {
        if (!noop) {
            sleep(record);
        }
        int handled = count.incrementAndGet();
        if (!noop && handled <= total) {
            latenciesMs[handled - 1] = (nowUs() - sentUs(record)) / 1e3;
        }
        if (handled == 1) {
            Thread watch = new Thread(ParallelConsumerLoad::watch);
            watch.setDaemon(true);
            watch.start();
        }
        if (handled == warmUp) {
            begin();
        }
        if (handled == total) {
            finish();
        }
    }

    static void sleep(ConsumerRecord<String, byte[]> record) {
        String value = new String(record.value(), 0, 20);
        long number = Long.parseLong(value.substring(0, 10));
        long micros = Long.parseLong(value.substring(11, 20));
        String key = record.key();
        if (running.put(key, true) != null || number != last.getOrDefault(key, -1L) + 1) {
            disordered.incrementAndGet();
        }
        last.put(key, number);
        if (micros > 0) {
            try {
                Thread.sleep(micros / 1000, (int) (micros % 1000) * 1000);
            } catch (InterruptedException error) {
                throw new RuntimeException(error);
            }
        }
        running.remove(key);
    }

    static long sentUs(ConsumerRecord<String, byte[]> record) {
        return Long.parseLong(new String(record.value(), 21, 16));
    }

    static long nowUs() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
    }

    static void watch() {
        try {
            Thread.sleep(WARM_UP_LIMIT_MS);
            begin();
            Thread.sleep(limitMs);
        } catch (InterruptedException error) {
            return;
        }
        finish();
    }

    static synchronized void begin() {
        if (firstCount >= 0) {
            return;
        }
        firstCount = count.get();
        firstCpuNs = cpuNs();
        firstNs = System.nanoTime();
        try {
            Files.createFile(folder.resolve("warm"));
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
    }

    static synchronized void finish() {
        double wallS = (System.nanoTime() - firstNs) / 1e9;
        double cpuS = (cpuNs() - firstCpuNs) / 1e9;
        int handled = Math.min(count.get(), total);
        double[] sorted = noop ? new double[0] : Arrays.copyOfRange(latenciesMs, firstCount, handled);
        Arrays.sort(sorted);
        String result = String.format(
            "{\"records\": %d, \"all_handled\": %b, \"wall_s\": %f, \"cpu_s\": %f, \"peak_mib\": %f,"
                + " \"disordered\": %d, \"p50_ms\": %f, \"p99_ms\": %f}",
            handled - firstCount, handled >= total, wallS, cpuS, peakMib(), disordered.get(),
            percentile(sorted, 0.50), percentile(sorted, 0.99));
        try {
            Files.writeString(folder.resolve("result.new"), result);
            Files.move(folder.resolve("result.new"), folder.resolve("result.json"), StandardCopyOption.ATOMIC_MOVE);
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
        Runtime.getRuntime().halt(0);
    }

    static double percentile(double[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[(int) ((sorted.length - 1) * share)];
    }

    static long cpuNs() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }

    static double peakMib() {
        try {
            for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
                if (line.startsWith("VmHWM:")) {
                    return Long.parseLong(line.replaceAll("[^0-9]", "")) / 1024.0;
                }
            }
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
        return 0;
    }
}
