#include "targets.hpp"

#include <algorithm>

#include "halving.hpp"
#include "session.hpp"
#include "statement.hpp"

namespace kudos::server {
namespace {

// How a target's key is spelled in its table and as parameters.
struct KeyColumn {
    const char *name;
    Oid type; // int8, uuid or text; parameters are arrays of it
};

constexpr int max_key_columns = 3;

struct Layout {
    int keys;
    KeyColumn key[max_key_columns];
    Oid id_type; // of the primary key "id", as a parameter
};

// In the order of the enum Table.
constexpr Layout layouts[table_count] = {
    {1, {{"id", INT8OID}}, INT8OID},
    {2, {{"user_id", INT8OID}, {"action", TEXTOID}}, INT8OID},
    {2, {{"worker_id", UUIDOID}, {"action", TEXTOID}}, INT8OID},
    {3, {{"user_id", INT8OID}, {"record_type", TEXTOID}, {"record", TEXTOID}}, INT8OID},
    {1, {{"id", UUIDOID}}, UUIDOID},
    {1, {{"id", UUIDOID}}, UUIDOID},
};

Statement lock_statement[table_count][lock_modes];
Statement update_statement[table_count];
Statement insert_statement[table_count];
Statement remainder_statement[table_count];
Statement forget_remainder_statement[table_count];
Statement floor_statement;
Statement lock_workers_statement[lock_modes];

const Layout &layout_of(Table table)
{
    return layouts[static_cast<int>(table)];
}

Oid array_type(Oid element)
{
    return element == INT8OID ? INT8ARRAYOID : element == UUIDOID ? UUIDARRAYOID : TEXTARRAYOID;
}

const char *array_type_name(Oid element)
{
    return element == INT8OID ? "int8[]" : element == UUIDOID ? "uuid[]" : "text[]";
}

// ---------------------------------------------------------------------------------------------
// Statement texts

void append_value(StringInfo sql, const ValueColumn &column)
{
    appendStringInfo(sql, ", t.%s::%s", column.name, column.as_text ? "text" : "int8");
}

// "unnest($1::int8[], $2::text[]) WITH ORDINALITY k(user_id, action, ord)"
void append_keys(StringInfo sql, const Layout &layout)
{
    appendStringInfoString(sql, "unnest(");
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(sql, "%s$%d::%s", i > 0 ? ", " : "", i + 1, array_type_name(layout.key[i].type));
    appendStringInfoString(sql, ") WITH ORDINALITY k(");
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(sql, "k%d, ", i + 1);
    appendStringInfoString(sql, "ord)");
}

// The record type is an enum; core has checked that the text is one of its labels.
const char *key_cast(const Schema &schema, const KeyColumn &key)
{
    return strcmp(key.name, "record_type") == 0 ? psprintf("::%s", schema.record_type_name) : "";
}

void write_lock(StringInfo sql, const Schema &schema, int variant)
{
    const auto table = static_cast<Table>(variant / lock_modes);
    const int mode = variant % lock_modes;
    const Layout &layout = layout_of(table);
    const TargetTable &target = schema.of(table);

    appendStringInfo(sql, "SELECT k.ord, t.id%s", layout.id_type == INT8OID ? "::int8" : "");
    for (int c = 0; c < target.columns; c++)
        append_value(sql, target.column[c]);
    for (int c = 0; c < target.columns; c++)
        appendStringInfo(sql, ", r.%s::int8", target.column[c].name);
    if (table == Table::users)
        appendStringInfoString(sql, ", t.last_active, t.oauth_id::text");
    if (mode == no_lock)
        appendStringInfoString(sql, ", t.tableoid, t.ctid");
    appendStringInfoString(sql, " FROM ");
    append_keys(sql, layout);
    appendStringInfo(sql, " JOIN %s t ON ", target.name);
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(sql, "%st.%s = k.k%d%s", i > 0 ? " AND " : "", layout.key[i].name, i + 1,
                         key_cast(schema, layout.key[i]));
    appendStringInfo(sql, " LEFT JOIN %s r ON ", target.remainder);
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(sql, "%sr.%s = k.k%d", i > 0 ? " AND " : "", layout.key[i].name, i + 1);
    if (mode != no_lock)
        appendStringInfo(sql, " ORDER BY t.id FOR NO KEY UPDATE OF t%s", mode == skip_locked ? " SKIP LOCKED" : "");
}

// $1: ids; then one array per value column; for users, last_active after them. Integers are added
// to, never written back: workers and teams have other writers.
void write_update(StringInfo sql, const Schema &schema, int variant)
{
    const auto table = static_cast<Table>(variant);
    const Layout &layout = layout_of(table);
    const TargetTable &target = schema.of(table);

    appendStringInfo(sql, "UPDATE %s t SET ", target.name);
    for (int c = 0; c < target.columns; c++) {
        const ValueColumn &column = target.column[c];
        appendStringInfo(sql, "%s%s = ", c > 0 ? ", " : "", column.name);
        if (column.as_text)
            appendStringInfo(sql, "k.v%d::%s", c + 1, column.type_name);
        else
            appendStringInfo(sql, "t.%s + k.v%d", column.name, c + 1);
    }
    if (table == Table::users)
        appendStringInfoString(sql, ", last_active = greatest(t.last_active, k.last_active)");
    appendStringInfo(sql, " FROM unnest($1::%s", array_type_name(layout.id_type));
    for (int c = 0; c < target.columns; c++)
        appendStringInfo(sql, ", $%d::%s", c + 2, target.column[c].as_text ? "text[]" : "int8[]");
    if (table == Table::users)
        appendStringInfo(sql, ", $%d::timestamp[]", target.columns + 2);
    appendStringInfoString(sql, ") WITH ORDINALITY k(id");
    for (int c = 0; c < target.columns; c++)
        appendStringInfo(sql, ", v%d", c + 1);
    appendStringInfo(sql, "%s, ord) WHERE t.id = k.id RETURNING k.ord", table == Table::users ? ", last_active" : "");
    for (int c = 0; c < target.columns; c++)
        append_value(sql, target.column[c]);
    if (table == Table::users)
        appendStringInfoString(sql, ", t.last_active");
}

// Somebody else may insert the same key at the same moment: then ours is not written, and its rows
// wait for the next tick.
void write_insert(StringInfo sql, const Schema &schema, int variant)
{
    const auto table = static_cast<Table>(variant);
    const Layout &layout = layout_of(table);
    const TargetTable &target = schema.of(table);
    const ValueColumn &value = target.column[column::value];

    appendStringInfo(sql, "INSERT INTO %s AS t (", target.name);
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(sql, "%s, ", layout.key[i].name);
    appendStringInfo(sql, "%s) SELECT ", value.name);
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(sql, "k.k%d%s, ", i + 1, key_cast(schema, layout.key[i]));
    appendStringInfo(sql, "k.v%s%s FROM unnest(", value.as_text ? "::" : "", value.as_text ? value.type_name : "");
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(sql, "$%d::%s, ", i + 1, array_type_name(layout.key[i].type));
    appendStringInfo(sql, "$%d::%s) WITH ORDINALITY k(", layout.keys + 1, value.as_text ? "text[]" : "int8[]");
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(sql, "k%d, ", i + 1);
    appendStringInfoString(sql, "v, ord) ORDER BY k.ord ON CONFLICT (");
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(sql, "%s%s", i > 0 ? ", " : "", layout.key[i].name);
    appendStringInfoString(sql, ") DO NOTHING RETURNING ");
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(sql, "%st.%s%s", i > 0 ? ", " : "", layout.key[i].name,
                         layout.key[i].type == INT8OID   ? "::int8"
                         : layout.key[i].type == TEXTOID ? "::text"
                                                         : "");
    append_value(sql, value);
}

void write_remainder(StringInfo sql, const Schema &schema, int variant)
{
    const auto table = static_cast<Table>(variant);
    const Layout &layout = layout_of(table);
    const TargetTable &target = schema.of(table);

    StringInfoData keys;
    initStringInfo(&keys);
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(&keys, "%s%s", i > 0 ? ", " : "", layout.key[i].name);
    appendStringInfo(sql, "INSERT INTO %s AS r (%s", target.remainder, keys.data);
    for (int c = 0; c < target.columns; c++)
        appendStringInfo(sql, ", %s", target.column[c].name);
    appendStringInfoString(sql, ") SELECT * FROM unnest(");
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(sql, "%s$%d::%s", i > 0 ? ", " : "", i + 1, array_type_name(layout.key[i].type));
    for (int c = 0; c < target.columns; c++)
        appendStringInfo(sql, ", $%d::int8[]", layout.keys + c + 1);
    appendStringInfo(sql, ") ON CONFLICT (%s) DO UPDATE SET ", keys.data);
    for (int c = 0; c < target.columns; c++)
        appendStringInfo(sql, "%s%s = excluded.%s", c > 0 ? ", " : "", target.column[c].name, target.column[c].name);
}

// The remainder of a row that was deleted is not that of a new one with its key.
void write_forget_remainder(StringInfo sql, const Schema &schema, int variant)
{
    const auto table = static_cast<Table>(variant);
    const Layout &layout = layout_of(table);
    const TargetTable &target = schema.of(table);
    appendStringInfo(sql, "UPDATE %s r SET %s = 0 FROM ", target.remainder, target.column[column::value].name);
    append_keys(sql, layout);
    appendStringInfo(sql, " WHERE r.%s <> 0", target.column[column::value].name);
    for (int i = 0; i < layout.keys; i++)
        appendStringInfo(sql, " AND r.%s = k.k%d", layout.key[i].name, i + 1);
}

void write_lock_workers(StringInfo sql, const Schema &schema, int mode)
{
    appendStringInfo(sql, "SELECT w.id, w.tableoid, w.ctid FROM %s w WHERE w.id = ANY ($1) ORDER BY w.id",
                     schema.of(Table::workers).name);
    if (mode != no_lock)
        appendStringInfo(sql, " FOR KEY SHARE OF w%s", mode == skip_locked ? " SKIP LOCKED" : "");
}

void write_floor(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "INSERT INTO %s AS l (created, event_id, entry_type, user_id, escrow, amount, applied, detail)"
                     " SELECT $3, gen_random_uuid(), 'FLOOR_ADJUSTMENT', k.user_id, false, k.amount::numeric, true,"
                     " '{\"reason\": \"minimum_balance_floor\"}'::jsonb"
                     " FROM unnest($1::int8[], $2::text[]) WITH ORDINALITY k(user_id, amount, ord) ORDER BY k.ord"
                     " RETURNING l.user_id::int8, l.amount::text, l.applied AND NOT l.escrow",
                     schema.ledger_name);
}

// ---------------------------------------------------------------------------------------------
// Parameters

template <typename Item, typename KeyOf>
void bind_keys(std::span<Datum> parameters, const Layout &layout, std::span<const Item> items, KeyOf key_of)
{
    for (int i = 0; i < layout.keys; i++) {
        const KeyColumn &column = layout.key[i];
        // The texts of a key are the action (or record type), then the record.
        const bool second_text = column.type == TEXTOID && i == 2;
        parameters[static_cast<std::size_t>(i)] = array_from(items, column.type, [&](const Item &item) {
            const TargetKey &key = key_of(item);
            return column.type == INT8OID   ? Int64GetDatum(key.user)
                   : column.type == UUIDOID ? uuid_datum(key.uuid)
                                            : text_datum(second_text ? key.record : key.action);
        });
    }
}

std::int64_t whole_units(Cents cents)
{
    return static_cast<std::int64_t>(cents / cents_per_unit);
}

// ---------------------------------------------------------------------------------------------
// Locking and reading

struct LockedTarget {
    bool present;
    Datum id; // of the row, as a parameter
    TargetState state;
};

bool read_value(const Rows &rows, uint64 row, int position, const ValueColumn &column, Cents *value)
{
    if (rows.is_null(row, position))
        return false;
    if (column.as_text) {
        const Parsed parsed = rows.cents(row, position, *value);
        return parsed == Parsed::exact || parsed == Parsed::rounded;
    }
    *value = Cents{rows.integer(row, position)} * cents_per_unit;
    return true;
}

void read_state(const Rows &rows, uint64 row, Table table, const TargetTable &target, LockedTarget *locked)
{
    locked->present = true;
    locked->id = rows.datum(row, 2);
    TargetState &state = locked->state;
    state.present = true;
    for (int c = 0; c < target.columns; c++) {
        state.readable = state.readable && read_value(rows, row, 3 + c, target.column[c], &state.shown[c]);
        const int remainder = 3 + target.columns + c;
        state.remainder[c] = rows.is_null(row, remainder) ? 0 : rows.integer(row, remainder);
    }
    if (table == Table::users) {
        const int last_active = 3 + 2 * target.columns;
        state.last_active = rows.is_null(row, last_active) ? PG_INT64_MIN : rows.integer(row, last_active);
        state.oauth_id = rows.text(row, 4 + 2 * target.columns);
    }
}

Rows run_lock(const Schema &schema, Table table, int mode, std::span<const Datum> keys)
{
    const Layout &layout = layout_of(table);
    Oid types[max_key_columns];
    for (int i = 0; i < layout.keys; i++)
        types[i] = array_type(layout.key[i].type);
    const auto t = static_cast<int>(table);
    execute(prepared(lock_statement[t][mode], schema, write_lock, t * lock_modes + mode,
                     std::span(types).first(static_cast<std::size_t>(layout.keys))),
            keys, SPI_OK_SELECT);
    return Rows();
}

std::span<LockedTarget> lock_targets(const Schema &schema, Batch &batch, Table table, Attempt attempt)
{
    const std::span<const TargetDelta> wanted = deltas(batch, table);
    const TargetTable &target = schema.of(table);
    const auto key_count = static_cast<std::size_t>(layout_of(table).keys);
    Datum keys[max_key_columns];
    bind_keys(std::span(keys), layout_of(table), wanted,
              [](const TargetDelta &delta) -> const TargetKey & { return delta.key; });

    std::span<LockedTarget> locked = allocate<LockedTarget>(wanted.size());
    const auto parameters = std::span<const Datum>(keys).first(key_count);
    const Rows rows = run_lock(schema, table, attempt == Attempt::careful ? skip_locked : wait_for_lock, parameters);
    for (uint64 row = 0; row < rows.count(); row++)
        read_state(rows, row, table, target, &locked[static_cast<std::size_t>(rows.integer(row, 1) - 1)]);

    if (attempt == Attempt::careful && rows.count() < wanted.size()) {
        const Rows there = run_lock(schema, table, no_lock, parameters);
        for (uint64 row = 0; row < there.count(); row++) {
            const auto index = static_cast<std::size_t>(there.integer(row, 1) - 1);
            if (!locked[index].present)
                require_ok(refuse(
                    batch,
                    {.table = table, .cause = Cause::locked, .key = wanted[index].key, .holder = there.holder(row)}));
        }
    }
    return locked;
}

// ---------------------------------------------------------------------------------------------
// Writing; what is stored is compared with what was intended (section 4, Written means written)

void refuse_write(Batch &batch, Table table, const TargetWrite &write, Cause cause, std::string_view message = {})
{
    require_ok(refuse(
        batch, {.table = table, .cause = cause, .key = deltas(batch, table)[write.index].key, .message = message}));
}

// A float8 holds the nearest double, whose own text may be another number of cents.
bool same_double(std::string_view stored, Cents intended)
{
    char stored_text[64];
    char intended_text[cents_text_size];
    const std::size_t size = format_cents(intended, intended_text);
    intended_text[size] = '\0';
    strlcpy(stored_text, pnstrdup(stored.data(), stored.size()), sizeof(stored_text));
    return strtod(stored_text, nullptr) == strtod(intended_text, nullptr);
}

bool stored_as_intended(const Rows &rows, uint64 row, int first, const TargetTable &target, const TargetWrite &write)
{
    for (int c = 0; c < target.columns; c++) {
        if (target.column[c].binary) {
            if (!same_double(rows.text(row, first + c), write.shown[c]))
                return false;
            continue;
        }
        Cents stored = 0;
        if (!read_value(rows, row, first + c, target.column[c], &stored) || stored != write.shown[c])
            return false;
    }
    return true;
}

// In id order.
std::span<Uuid> run_lock_workers(const Schema &schema, int mode, Datum ids)
{
    const Oid types[] = {UUIDARRAYOID};
    execute(prepared(lock_workers_statement[mode], schema, write_lock_workers, mode, types), {&ids, 1}, SPI_OK_SELECT);
    const Rows rows;
    std::span<Uuid> workers = allocate<Uuid>(rows.count());
    for (uint64 row = 0; row < rows.count(); row++)
        workers[row] = rows.uuid(row, 1);
    return workers;
}

// NULL for users whom no row touches: their last_active stays as it is.
Datum touches_of(std::span<const TargetWrite> chosen)
{
    std::span<Datum> times = allocate<Datum>(chosen.size());
    std::span<bool> nulls = allocate<bool>(chosen.size());
    for (std::size_t i = 0; i < chosen.size(); i++) {
        times[i] = TimestampGetDatum(chosen[i].last_active);
        nulls[i] = !chosen[i].touched;
    }
    return array_with_nulls(times, nulls, TIMESTAMPOID);
}

void update_targets(const Schema &schema, Batch &batch, Table table, std::span<const TargetWrite> chosen,
                    std::span<const LockedTarget> locked)
{
    const Layout &layout = layout_of(table);
    const TargetTable &target = schema.of(table);
    Oid types[max_value_columns + 2];
    Datum parameters[max_value_columns + 2];
    std::size_t count = 0;
    types[count] = array_type(layout.id_type);
    parameters[count++] =
        array_from(chosen, layout.id_type, [&](const TargetWrite &write) { return locked[write.index].id; });
    for (int c = 0; c < target.columns; c++) {
        const bool as_text = target.column[c].as_text;
        types[count] = array_type(as_text ? TEXTOID : INT8OID);
        parameters[count++] = array_from(chosen, as_text ? TEXTOID : INT8OID, [&](const TargetWrite &write) {
            return as_text ? cents_datum(write.shown[c]) : Int64GetDatum(whole_units(write.step[c]));
        });
    }
    if (table == Table::users) {
        types[count] = TIMESTAMPARRAYOID;
        parameters[count++] = touches_of(chosen);
    }
    execute(prepared(update_statement[static_cast<int>(table)], schema, write_update, static_cast<int>(table),
                     std::span(types).first(count)),
            std::span<const Datum>(parameters).first(count), SPI_OK_UPDATE_RETURNING);

    const Rows rows;
    std::span<bool> written = allocate<bool>(chosen.size());
    for (uint64 row = 0; row < rows.count(); row++) {
        const auto index = static_cast<std::size_t>(rows.integer(row, 1) - 1);
        written[index] = stored_as_intended(rows, row, 2, target, chosen[index]) &&
                         (!chosen[index].touched || rows.integer(row, 2 + target.columns) == chosen[index].last_active);
    }
    for (std::size_t i = 0; i < chosen.size(); i++)
        if (!written[i])
            refuse_write(batch, table, chosen[i], Cause::not_written);
}

bool is_row_of(const Rows &rows, uint64 row, const Layout &layout, const TargetKey &key)
{
    for (int i = 0; i < layout.keys; i++) {
        const Oid type = layout.key[i].type;
        const bool same = type == INT8OID   ? rows.integer(row, i + 1) == key.user
                          : type == UUIDOID ? rows.uuid(row, i + 1) == key.uuid
                                            : rows.text(row, i + 1) == (i == 2 ? key.record : key.action);
        if (!same)
            return false;
    }
    return true;
}

void insert_targets(const Schema &schema, Batch &batch, Table table, std::span<const TargetWrite> chosen)
{
    const Layout &layout = layout_of(table);
    const TargetTable &target = schema.of(table);
    const std::span<const TargetDelta> keys = deltas(batch, table);
    const bool as_text = target.column[column::value].as_text;
    Oid types[max_key_columns + 1];
    Datum parameters[max_key_columns + 1];
    for (int i = 0; i < layout.keys; i++)
        types[i] = array_type(layout.key[i].type);
    types[layout.keys] = array_type(as_text ? TEXTOID : INT8OID);
    bind_keys(std::span(parameters), layout, chosen,
              [&](const TargetWrite &write) -> const TargetKey & { return keys[write.index].key; });
    parameters[layout.keys] = array_from(chosen, as_text ? TEXTOID : INT8OID, [&](const TargetWrite &write) {
        return as_text ? cents_datum(write.shown[0]) : Int64GetDatum(whole_units(write.shown[0]));
    });
    const auto count = static_cast<std::size_t>(layout.keys + 1);
    execute(prepared(insert_statement[static_cast<int>(table)], schema, write_insert, static_cast<int>(table),
                     std::span(types).first(count)),
            std::span<const Datum>(parameters).first(count), SPI_OK_INSERT_RETURNING);

    // Both lists are in the same order. A row that is missing from the second was not written; one that
    // nobody intended there is passed over.
    const Rows rows;
    uint64 next = 0;
    for (const TargetWrite &write : chosen) {
        uint64 row = next;
        while (row < rows.count() && !is_row_of(rows, row, layout, keys[write.index].key))
            row++;
        const bool found = row < rows.count();
        if (!found || !stored_as_intended(rows, row, layout.keys + 1, target, write))
            refuse_write(batch, table, write, Cause::not_written);
        if (found)
            next = row + 1;
    }
}

void forget_remainders(const Schema &schema, const Batch &batch, Table table, std::span<const TargetWrite> inserted)
{
    const Layout &layout = layout_of(table);
    const std::span<const TargetDelta> keys = deltas(batch, table);
    const auto count = static_cast<std::size_t>(layout.keys);
    Oid types[max_key_columns];
    Datum parameters[max_key_columns];
    for (std::size_t i = 0; i < count; i++)
        types[i] = array_type(layout.key[i].type);
    bind_keys(std::span(parameters), layout, inserted,
              [&](const TargetWrite &write) -> const TargetKey & { return keys[write.index].key; });
    execute(prepared(forget_remainder_statement[static_cast<int>(table)], schema, write_forget_remainder,
                     static_cast<int>(table), std::span(types).first(count)),
            std::span<const Datum>(parameters).first(count), SPI_OK_UPDATE);
}

void write_remainders(const Schema &schema, Batch &batch, Table table, std::span<const TargetWrite> chosen)
{
    const Layout &layout = layout_of(table);
    const TargetTable &target = schema.of(table);
    const std::span<const TargetDelta> keys = deltas(batch, table);
    Oid types[max_key_columns + max_value_columns];
    Datum parameters[max_key_columns + max_value_columns];
    std::size_t count = 0;
    for (; count < static_cast<std::size_t>(layout.keys); count++)
        types[count] = array_type(layout.key[count].type);
    bind_keys(std::span(parameters), layout, chosen,
              [&](const TargetWrite &write) -> const TargetKey & { return keys[write.index].key; });
    for (int c = 0; c < target.columns; c++) {
        types[count] = INT8ARRAYOID;
        parameters[count++] = array_from(chosen, INT8OID, [&](const TargetWrite &write) {
            return Int64GetDatum(static_cast<std::int64_t>(write.remainder[c]));
        });
    }
    write_exactly(prepared(remainder_statement[static_cast<int>(table)], schema, write_remainder,
                           static_cast<int>(table), std::span(types).first(count)),
                  std::span<const Datum>(parameters).first(count), SPI_OK_INSERT, chosen.size(), target.remainder);
}

template <typename Choose> std::span<TargetWrite> choose(std::span<const TargetWrite> all, Choose chosen_when)
{
    std::span<TargetWrite> chosen = allocate<TargetWrite>(all.size());
    std::size_t count = 0;
    for (const TargetWrite &write : all)
        if (chosen_when(write))
            chosen[count++] = write;
    return chosen.first(count);
}

void refuse_floored(Batch &batch, const FloorAdjustment &row, Cause cause, std::string_view message = {})
{
    require_ok(refuse(batch, {.table = Table::users,
                              .column = column::user_kudos,
                              .cause = cause,
                              .key = TargetKey{.user = row.user},
                              .message = message}));
}

void insert_floor_adjustments(const Schema &schema, Batch &batch, std::span<const FloorAdjustment> chosen)
{
    const Oid types[] = {INT8ARRAYOID, TEXTARRAYOID, TIMESTAMPOID};
    const Datum parameters[] = {
        array_from(chosen, INT8OID, [](const FloorAdjustment &row) { return Int64GetDatum(row.user); }),
        array_from(chosen, TEXTOID, [](const FloorAdjustment &row) { return cents_datum(row.amount); }),
        TimestampGetDatum(utc_now()),
    };
    execute(prepared(floor_statement, schema, write_floor, 0, types), parameters, SPI_OK_INSERT_RETURNING);
    // Both lists are in the order of users, each once.
    const Rows rows;
    uint64 next = 0;
    for (const FloorAdjustment &row : chosen) {
        while (next < rows.count() && rows.integer(next, 1) < row.user)
            next++;
        Cents amount = 0;
        const bool as_meant = next < rows.count() && rows.integer(next, 1) == row.user &&
                              rows.cents(next, 2, amount) == Parsed::exact && amount == row.amount &&
                              rows.boolean(next, 3);
        if (!as_meant)
            refuse_floored(batch, row, Cause::not_written);
    }
}

} // namespace

void write_targets(const Schema &schema, Batch &batch, Table table, Attempt attempt)
{
    if (deltas(batch, table).empty())
        return;
    const TargetTable &target = schema.of(table);
    const std::span<LockedTarget> locked = lock_targets(schema, batch, table, attempt);

    std::span<TargetState> states = allocate<TargetState>(locked.size());
    for (std::size_t i = 0; i < locked.size(); i++)
        states[i] = locked[i].state;
    ColumnType types[max_value_columns];
    for (int c = 0; c < target.columns; c++)
        types[c] = target.column[c].type;
    require_ok(settle_table(batch, table, std::span(types).first(static_cast<std::size_t>(target.columns)), states));
    // The attempt ends here anyway; later tables may have more to refuse, though.
    if (!refusals(batch).empty())
        return;

    const std::span<const TargetWrite> all = writes(batch, table);
    const auto updates = choose(all, [](const TargetWrite &write) { return write.present && write.value_changed; });
    const auto inserts = choose(all, [](const TargetWrite &write) { return !write.present; });
    const auto remainders = choose(all, [](const TargetWrite &write) { return write.remainder_changed; });
    const auto refuse_stuck = [&](const TargetWrite &write, Cause cause, std::string_view message) {
        refuse_write(batch, table, write, cause, message);
    };
    using Chosen = std::span<const TargetWrite>;
    write_each(
        attempt, batch, Chosen(updates), [&](Chosen chosen) { update_targets(schema, batch, table, chosen, locked); },
        refuse_stuck);
    // Somebody's uncommitted row of the same key is waited for, too.
    write_each(
        attempt, batch, Chosen(inserts), [&](Chosen chosen) { insert_targets(schema, batch, table, chosen); },
        refuse_stuck);
    if (!inserts.empty())
        forget_remainders(schema, batch, table, inserts);
    if (!remainders.empty())
        write_remainders(schema, batch, table, remainders);
}

void keep_workers(const Schema &schema, Batch &batch, Attempt attempt)
{
    const std::span<const Uuid> named = workers_with_stats(batch);
    if (named.empty())
        return;
    const Datum ids = array_of(named);
    const bool careful = attempt == Attempt::careful;
    const std::span<Uuid> locked = run_lock_workers(schema, careful ? skip_locked : wait_for_lock, ids);
    std::span<Uuid> existing = locked;
    if (careful && locked.size() < named.size()) {
        existing = run_lock_workers(schema, no_lock, ids);
        const Rows rows;
        for (std::size_t i = 0; i < existing.size(); i++)
            if (!std::binary_search(locked.begin(), locked.end(), existing[i]))
                require_ok(refuse(batch, {.table = Table::workers,
                                          .cause = Cause::locked,
                                          .key = TargetKey{.uuid = existing[i]},
                                          .holder = rows.holder(i)}));
    }
    require_ok(skip_missing_workers(batch, existing));
}

void write_floor_adjustments(const Schema &schema, Batch &batch, Attempt attempt)
{
    write_each(
        attempt, batch, floor_adjustments(batch),
        [&](std::span<const FloorAdjustment> chosen) { insert_floor_adjustments(schema, batch, chosen); },
        [&](const FloorAdjustment &row, Cause cause, std::string_view message) {
            refuse_floored(batch, row, cause, message);
        });
}

} // namespace kudos::server
