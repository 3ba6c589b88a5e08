import java.util.ArrayList;
import java.util.HashMap;

/** COUNT objects and strings, most of them kept, some of them garbage; prints one hash. */
public class Allocate {
    record Row(int id, String name, byte[] bytes) {}

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        var byName = new HashMap<String, Row>();
        var kept = new ArrayList<Row>();
        for (int i = 0; i < count; i++) {
            String name = "key " + (i * 7919L) % count;
            byte[] bytes = new byte[i % 256];
            java.util.Arrays.fill(bytes, (byte) i);
            Row row = new Row(i, name, bytes);
            byName.put(name, row);
            if (i % 3 != 0) kept.add(new Row(-i, new StringBuilder(name).reverse().toString(), bytes.clone()));
        }
        kept.sort(java.util.Comparator.comparing(Row::name).thenComparing(Row::id));
        long hash = 17;
        for (Row row : kept) {
            hash = hash * 31 + row.name().hashCode() + row.id();
            for (byte b : row.bytes()) hash = hash * 31 + b;
        }
        for (int i = 0; i < count; i++) hash = hash * 31 + byName.get("key " + (i * 7919L) % count).id();
        System.out.println(hash + " " + byName.size() + " " + kept.size());
    }
}
