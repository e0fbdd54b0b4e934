package weft.peers;

import jakarta.persistence.Column;
import jakarta.persistence.Entity;
import jakarta.persistence.Id;
import java.time.Instant;
import org.hibernate.search.mapper.pojo.mapping.definition.annotation.FullTextField;
import org.hibernate.search.mapper.pojo.mapping.definition.annotation.GenericField;
import org.hibernate.search.mapper.pojo.mapping.definition.annotation.Indexed;

/** A row of the table item, and the document that it becomes. */
@Entity(name = "item")
@Indexed(index = "peers-hibernate")
public class Item {
  @Id Long id;

  @FullTextField
  @Column(columnDefinition = "text", nullable = false)
  String title;

  @FullTextField
  @Column(columnDefinition = "text", nullable = false)
  String body;

  @GenericField
  @Column(columnDefinition = "numeric(10,2)", nullable = false)
  double price;

  @GenericField
  @Column(name = "updated_at", columnDefinition = "timestamptz", nullable = false)
  Instant updatedAt;
}
