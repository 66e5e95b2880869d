import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnector;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * The request time of each client of a broker, in percent: PORT FROM_MS UNTIL_MS. Reads it by JMX once a second between
 * two times of the wall clock, and prints "CLIENT_ID MEAN" each.
 */
public class RequestTimes {
    public static void main(String[] arguments) throws Exception {
        String url = "service:jmx:rmi:///jndi/rmi://127.0.0.1:" + arguments[0] + "/jmxrmi";
        long untilMs = Long.parseLong(arguments[2]);
        Map<String, List<Double>> seen = new TreeMap<>();
        try (JMXConnector connector = JMXConnectorFactory.connect(new JMXServiceURL(url))) {
            MBeanServerConnection beans = connector.getMBeanServerConnection();
            Thread.sleep(Math.max(0, Long.parseLong(arguments[1]) - System.currentTimeMillis()));
            while (System.currentTimeMillis() < untilMs) {
                for (ObjectName name : beans.queryNames(new ObjectName("kafka.server:type=Request,client-id=*"), null)) {
                    double percent = ((Number) beans.getAttribute(name, "request-time")).doubleValue();
                    seen.computeIfAbsent(name.getKeyProperty("client-id"), any -> new ArrayList<>()).add(percent);
                }
                Thread.sleep(1000);
            }
        }
        seen.forEach((client, percents) ->
            System.out.println(client + " " + percents.stream().mapToDouble(each -> each).average().orElse(0)));
    }
}
