import io.confluent.parallelconsumer.offsets.NoEncodingPossibleException;
import io.confluent.parallelconsumer.offsets.OffsetSimultaneousEncoder;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;
import java.util.TreeSet;

/**
 * Encodes finished offsets as Confluent's Parallel Consumer does before a commit. A line of input has the offset
 * to commit, the highest finished offset, and the unfinished ones between; a line of output has the bytes of the
 * metadata, or "none" where no encoding is possible.
 */
public class CommitMetadata {
    public static void main(String[] given) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            TreeSet<Long> unfinished = new TreeSet<>();
            for (int index = 2; index < words.length; index++) {
                unfinished.add(Long.parseLong(words[index]));
            }
            System.out.println(bytes(Long.parseLong(words[0]), Long.parseLong(words[1]), unfinished));
        }
    }

    static String bytes(long committed, long highestFinished, TreeSet<Long> unfinished) {
        try {
            byte[] packed = new OffsetSimultaneousEncoder(committed, highestFinished, unfinished).invoke().packSmallest();
            return String.valueOf(Base64.getEncoder().encodeToString(packed).length());
        } catch (NoEncodingPossibleException error) {
            return "none";
        }
    }
}
