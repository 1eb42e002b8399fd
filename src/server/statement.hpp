// Prepared statements: written once per session, written anew when the schema changed.
#pragma once

#include "pg.hpp"

#include <span>

#include "memory.hpp"
#include "schema.hpp"

namespace kudos::server {

// One statement of a cycle. Static, one per statement and variant.
struct Statement {
    SPIPlanPtr plan;
    uint64 generation; // of the schema it was written for
};

using WriteStatement = void (*)(StringInfo sql, const Schema &schema, int variant);

// Gives the plan; prepares it where the schema is not the one it was written for.
SPIPlanPtr prepared(Statement &statement, const Schema &schema, WriteStatement write, int variant,
                    std::span<const Oid> parameter_types);

// Runs it with a fresh snapshot, whatever the isolation of the caller's transaction, and gives
// SPI_processed; the rows are in SPI_tuptable. nulls: as SPI takes them, or null for none. Raises an
// internal error when the server answers with another code than the one expected.
uint64 execute(SPIPlanPtr plan, std::span<const Datum> parameters, int expected_code, const char *nulls = nullptr);

// The same, for a statement that must write exactly so many rows of the table. Raises 55000 where a
// trigger or rule kept some from it.
void write_exactly(SPIPlanPtr plan, std::span<const Datum> parameters, int expected_code, uint64 rows,
                   const char *table, const char *nulls = nullptr);

// How the two queue tables may be read while plans are pinned.
enum class QueuePath : uint8 {
    by_id, // a claim: the queue indexes on (id)
    any,   // any index of queued rows only, and any that begins with event_id
};

// Between these two, statements are planned on indexes only, and the queue tables are read by the
// given path, whatever the statistics say: nothing may read the archive (contract, section 1). For
// statements without triggers.
int pin_plans(const Schema &schema, QueuePath path = QueuePath::any);
void unpin_plans(int level);

// --- parameters: arrays in the current memory context

Datum array_of(std::span<const std::int64_t> values);
Datum array_of(std::span<const Uuid> values);
inline Datum text_datum(std::string_view text)
{
    return PointerGetDatum(cstring_to_text_with_len(text.data(), static_cast<int>(text.size())));
}
inline Datum uuid_datum(const Uuid &uuid)
{
    return PointerGetDatum(const_cast<std::uint8_t *>(uuid.bytes.data()));
}
Datum cents_datum(Cents cents); // as text
Datum array_with_nulls(std::span<Datum> values, std::span<bool> nulls, Oid element_type);

// Builds a Datum array by one function per item.
template <typename Item, typename Convert>
Datum array_from(std::span<const Item> items, Oid element_type, Convert convert)
{
    std::span<Datum> values = allocate<Datum>(items.size());
    for (std::size_t i = 0; i < items.size(); i++)
        values[i] = convert(items[i]);
    int16 length;
    bool by_value;
    char alignment;
    get_typlenbyvalalign(element_type, &length, &by_value, &alignment);
    return PointerGetDatum(
        construct_array(values.data(), static_cast<int>(items.size()), element_type, length, by_value, alignment));
}

// --- results of the statement that ran last

class Rows {
  public:
    Rows() : table_(SPI_tuptable), count_(SPI_processed) {}
    uint64 count() const { return count_; }
    bool is_null(uint64 row, int column) const
    {
        bool null;
        (void)SPI_getbinval(table_->vals[row], table_->tupdesc, column, &null);
        return null;
    }
    Datum datum(uint64 row, int column) const
    {
        bool null;
        return SPI_getbinval(table_->vals[row], table_->tupdesc, column, &null);
    }
    std::int64_t integer(uint64 row, int column) const { return DatumGetInt64(datum(row, column)); }
    bool boolean(uint64 row, int column) const { return DatumGetBool(datum(row, column)); }
    // Borrowed from the result, which lives as long as the cycle's SPI connection.
    std::string_view text(uint64 row, int column) const;
    Uuid uuid(uint64 row, int column) const;
    // Who holds the lock of a row that was read without one: of its last two columns, tableoid and ctid.
    std::int32_t holder(uint64 row) const;
    Parsed cents(uint64 row, int column, Cents &value) const { return parse_cents(text(row, column), value); }

  private:
    SPITupleTable *table_;
    uint64 count_;
};

// Raises what core reported, now that core is off the stack.
void require_ok(const Status &status);

} // namespace kudos::server
