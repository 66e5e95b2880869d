import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Reads lines of "class version hex" and answers each with "hex json": the message written again by Apache
 * Kafka, and what it understood; or with "error" and the reason. A line "versions class" is answered with the
 * first and the last version.
 */
public class MessageEcho {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                String[] words = line.split(" ", -1);
                answer = words[0].equals("versions")
                    ? versions(words[1])
                    : echo(words[0], Short.parseShort(words[1]), HexFormat.of().parseHex(words[2]));
            } catch (Exception error) {
                Throwable cause = error instanceof InvocationTargetException ? error.getCause() : error;
                answer = "error " + String.valueOf(cause).replace('\n', ' ');
            }
            out.print(answer + "\n");
            out.flush();
        }
    }

    static String versions(String name) throws Exception {
        Message message = (Message) Class.forName(name).getDeclaredConstructor().newInstance();
        return message.lowestSupportedVersion() + " " + message.highestSupportedVersion();
    }

    static String echo(String name, short version, byte[] bytes) throws Exception {
        Class<?> type = Class.forName(name);
        Message message = (Message) type.getDeclaredConstructor().newInstance();
        ByteBufferAccessor readable = new ByteBufferAccessor(ByteBuffer.wrap(bytes));
        message.read(readable, version);
        if (readable.remaining() > 0) {
            throw new IllegalStateException(readable.remaining() + " bytes are left");
        }
        Class<?> converter = Class.forName(name + "JsonConverter");
        JsonNode json = (JsonNode) converter.getMethod("write", type, short.class).invoke(null, message, version);
        return HexFormat.of().formatHex(write(message, version)) + " " + json;
    }

    static byte[] write(Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return buffer.array();
    }
}
