import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import org.apache.kafka.common.security.kerberos.KerberosName;
import org.apache.kafka.common.security.kerberos.KerberosShortNamer;

/** Prints the user that Kafka makes of each line of a file: a default realm, a rule and a principal. */
public final class LocalNames {
    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Paths.get(arguments[0]), StandardCharsets.UTF_8)) {
            String[] given = line.split("\t", -1);
            System.out.println(named(given[0], given[1], given[2]));
        }
    }

    static String named(String realm, String rule, String principal) {
        try {
            KerberosShortNamer namer = KerberosShortNamer.fromUnparsedRules(realm, Arrays.asList(rule));
            return "=" + namer.shortName(KerberosName.parse(principal));
        } catch (Exception refused) {
            return "refused";
        }
    }
}
