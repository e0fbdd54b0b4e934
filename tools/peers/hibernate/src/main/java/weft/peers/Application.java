package weft.peers;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Properties;
import org.hibernate.Session;
import org.hibernate.SessionFactory;
import org.hibernate.cfg.Configuration;

/**
 * An application with Hibernate Search. `fill N` writes rows 1 to N and their events, `write FROM`
 * writes a row each 50 ms and prints its id after the commit; neither carries events. `run`
 * carries them until it is ended. Its settings are the lines of the file that SETTINGS names.
 */
public final class Application {
  private static final int BATCH = 500;
  private static final long PAUSE_MS = 50;

  public static void main(String[] args) throws Exception {
    Properties settings = new Properties();
    try (var in = java.nio.file.Files.newBufferedReader(java.nio.file.Path.of(System.getenv("SETTINGS")))) {
      settings.load(in);
    }
    if (!args[0].equals("run")) {
      settings.setProperty("hibernate.search.coordination.event_processor.enabled", "false");
    }
    try (SessionFactory sessions =
        new Configuration().addAnnotatedClass(Item.class).addProperties(settings).buildSessionFactory()) {
      switch (args[0]) {
        case "fill" -> fill(sessions, Long.parseLong(args[1]));
        case "write" -> write(sessions, Long.parseLong(args[1]));
        case "run" -> Thread.currentThread().join();
        default -> throw new IllegalArgumentException("want fill, write or run: " + args[0]);
      }
    }
  }

  private static void fill(SessionFactory sessions, long rows) {
    for (long first = 1; first <= rows; first += BATCH) {
      long begin = first;
      long end = Math.min(rows, first + BATCH - 1);
      sessions.inTransaction(session -> {
        for (long id = begin; id <= end; id++) {
          persist(session, id);
        }
      });
    }
  }

  private static void write(SessionFactory sessions, long from) throws InterruptedException {
    for (long id = from; ; id++) {
      long row = id;
      sessions.inTransaction(session -> persist(session, row));
      System.out.println(row);
      Thread.sleep(PAUSE_MS);
    }
  }

  private static void persist(Session session, long id) {
    Item item = new Item();
    item.id = id;
    item.title = "item " + id;
    item.body = ("the body of item " + id + " ").repeat(9);
    item.price = id % 100_000 / 100.0;
    item.updatedAt = Instant.now().truncatedTo(ChronoUnit.MILLIS);
    session.persist(item);
  }

  private Application() {}
}
