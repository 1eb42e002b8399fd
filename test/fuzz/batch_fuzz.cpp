// Whole batches from bytes, through the one door of core, against sums that are added up row by row here.
//
// What must hold, whatever the bytes say: no undefined behaviour; every row is quarantined, held back or
// folded into all its targets; the sum of the parts is the whole, wherever the batch is cut; a balance
// that was fed is at its floor at least, and the adjustments account for the difference.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "batch.hpp"
#include "floor.hpp"

namespace kudos {
namespace {

void require(bool holds, unsigned line = __builtin_LINE())
{
    if (holds)
        return;
    std::fprintf(stderr, "line %u does not hold\n", line);
    std::abort();
}

// Bytes as numbers and texts; zeros when they are used up.
class Input {
  public:
    Input(const std::uint8_t *bytes, std::size_t size) : at(bytes), end(bytes + size) {}

    bool empty() const { return at == end; }
    std::uint8_t byte() { return at == end ? 0 : *at++; }
    std::uint64_t number(int bytes)
    {
        std::uint64_t value = 0;
        for (int i = 0; i < bytes; i++)
            value = value << 8 | byte();
        return value;
    }
    std::string text()
    {
        std::string text(byte() % 64, '\0');
        for (char &c : text)
            c = static_cast<char>(byte());
        return text;
    }
    template <std::size_t Count> std::string text_or(const char *const (&known)[Count])
    {
        const std::uint8_t choice = byte();
        return choice < 8 * Count ? known[choice % Count] : text();
    }

  private:
    const std::uint8_t *at;
    const std::uint8_t *end;
};

// Small ones, those of the edges of numeric(20,2), and any that a column could hold.
Cents amount_of(Input &in)
{
    switch (in.byte() % 4) {
    case 0:
        return static_cast<std::int8_t>(in.byte());
    case 1:
        return static_cast<std::int64_t>(in.number(8));
    case 2:
        return highest_posting - in.byte();
    default:
        return -highest_posting + in.byte();
    }
}

Uuid uuid_of(Input &in)
{
    Uuid id;
    id.bytes[15] = in.byte() % 8;
    return id;
}

constexpr const char *entry_types[] = {"STAT_RECORD", "STAT_CONTRIBUTION", "STAT_ACTIVITY", "GENERATION"};
constexpr const char *units[] = {"kudos", "things", "count"};
constexpr const char *actions[] = {"CONTRIBUTION", "USAGE", "REQUEST", "contributions", "fulfilments", "accumulated"};
constexpr const char *records[] = {"user_kudos", "worker_kudos", "last_active", "image"};
constexpr std::string_view labels[] = {"CONTRIBUTION", "USAGE", "FULFILLMENT", "REQUEST", "STYLE", "NEW"};

// The rows, with the texts that they borrow.
struct Rows {
    std::vector<std::string> texts;
    std::vector<CurrencyPosting> currency;
    std::vector<StatPosting> stats;

    std::string_view keep(std::string text)
    {
        require(texts.size() < texts.capacity());
        return texts.emplace_back(std::move(text));
    }
};

constexpr std::size_t most_rows = 64;

void read_currency(Input &in, Rows &rows)
{
    CurrencyPosting row;
    row.id = static_cast<std::int64_t>(rows.currency.size()) + 1;
    row.event = uuid_of(in);
    row.user = in.byte() % 6;
    row.amount = amount_of(in);
    if (row.amount > 1000 || row.amount < -1000)
        row.amount /= 128; // all of them together must leave a floor adjustment within reach
    const std::uint8_t flags = in.byte();
    row.escrow = (flags & 1) != 0;
    row.foldable = (flags & 0x70) != 0;
    row.names_reservation = (flags & 2) != 0;
    if (row.names_reservation)
        row.reservation = rows.keep(in.text());
    rows.currency.push_back(row);
}

void read_stat(Input &in, Rows &rows)
{
    StatPosting row;
    row.id = static_cast<std::int64_t>(rows.stats.size()) + 1;
    row.event = uuid_of(in);
    row.amount = amount_of(in);
    row.created = static_cast<std::int64_t>(in.number(8));
    const std::uint8_t flags = in.byte();
    row.has_user = (flags & 1) != 0;
    row.has_worker = !row.has_user;
    row.has_team = (flags & 2) != 0;
    row.has_action = (flags & 4) == 0;
    row.has_record = (flags & 8) == 0;
    row.touches = (flags & 16) != 0;
    row.foldable = (flags & 0xE0) != 0;
    row.user = row.has_user ? in.byte() % 6 : 0;
    row.worker = row.has_worker ? uuid_of(in) : Uuid{};
    row.team = row.has_team ? uuid_of(in) : Uuid{};
    row.entry_type = rows.keep(in.text_or(entry_types));
    row.unit = rows.keep(in.text_or(units));
    row.action = row.has_action ? rows.keep(in.text_or(actions)) : std::string_view{};
    row.record = row.has_record ? rows.keep(in.text_or(records)) : std::string_view{};
    row.action_length = static_cast<std::int32_t>(row.action.size());
    row.record_length = static_cast<std::int32_t>(row.record.size());
    rows.stats.push_back(row);
}

Rows read_rows(Input &in)
{
    Rows rows;
    rows.texts.reserve(most_rows * 4);
    while (!in.empty() && rows.currency.size() + rows.stats.size() < most_rows)
        if (in.byte() % 2 == 0)
            read_currency(in, rows);
        else
            read_stat(in, rows);
    return rows;
}

using Target = std::tuple<Table, std::int64_t, std::array<std::uint8_t, 16>, std::string, std::string>;

Target target_of(Table table, const TargetKey &key)
{
    return {table, key.user, key.uuid.bytes, std::string(key.action), std::string(key.record)};
}

// What stands in the database: as wide as can be, so that nothing overflows.
struct World {
    std::map<Target, TargetState> states;
    std::map<std::int64_t, Cents> adjusted;
    std::set<std::int64_t> currency, stats, quarantined;
};

constexpr Cents widest = Cents{1} << 120;
constexpr ColumnType wide{.integer = true, .lowest = -widest / 100 * 100, .highest = widest / 100 * 100};
constexpr std::string_view oauth_ids[] = {"anon", "{urn:uuid:6ba7b8109dad11d180b400c04fd430c8}", "x", "", "anon ", "-"};

std::vector<std::int64_t> ids(std::span<const std::int64_t> span)
{
    return {span.begin(), span.end()};
}

void write_table(Batch &batch, Table table, World &world)
{
    std::vector<TargetState> states;
    for (const TargetDelta &delta : deltas(batch, table)) {
        TargetState &state = world.states[target_of(table, delta.key)];
        state.present = state.present || table == Table::users || table == Table::workers || table == Table::teams;
        if (table == Table::users)
            state.oauth_id = oauth_ids[delta.key.user];
        states.push_back(state);
    }
    const ColumnType types[] = {wide, wide, wide};
    const std::size_t columns = table == Table::users ? 2 : table == Table::workers || table == Table::teams ? 3 : 1;
    require(settle_table(batch, table, std::span(types).first(columns), states).ok());
    for (const TargetWrite &write : writes(batch, table)) {
        TargetState &state = world.states[target_of(table, deltas(batch, table)[write.index].key)];
        for (std::size_t c = 0; c < columns; c++) {
            require(write.shown[c] % 100 == 0 && write.remainder[c] >= -50 && write.remainder[c] <= 50);
            require(state.shown[c] + write.step[c] == write.shown[c]);
            state.shown[c] = write.shown[c];
            state.remainder[c] = write.remainder[c];
        }
        state.present = true;
        require(write.last_active >= state.last_active);
        state.last_active = write.last_active;
    }
}

// Folds one part. Rows of an event stand together in a part, as quarantine asks.
void apply(World &world, const Rows &rows, const std::set<std::uint8_t> &events)
{
    Rows part;
    for (const CurrencyPosting &row : rows.currency)
        if (events.contains(row.event.bytes[15]))
            part.currency.push_back(row);
    for (const StatPosting &row : rows.stats)
        if (events.contains(row.event.bytes[15]))
            part.stats.push_back(row);

    Batch *batch = nullptr;
    require(open_batch(part.currency, part.stats, {}, &batch).ok());
    const std::int64_t existing[] = {0, 1, 2, 3, 4};
    require(validate_batch(*batch, existing, {.record_types = labels}).ok());
    require(fold_batch(*batch).ok());
    for (const Table table : {Table::users, Table::user_stats, Table::worker_stats, Table::user_records, Table::workers,
                              Table::teams})
        write_table(*batch, table, world);
    require(refusals(*batch).empty());
    for (const FloorAdjustment &adjustment : floor_adjustments(*batch)) {
        require(adjustment.amount > 0);
        world.adjusted[adjustment.user] += adjustment.amount;
    }
    std::set<std::uint8_t> quarantined;
    for (const QuarantinedEvent &event : quarantined_events(*batch))
        quarantined.insert(event.event.bytes[15]);
    for (const StatPosting &row : part.stats)
        if (quarantined.contains(row.event.bytes[15]))
            world.quarantined.insert(row.id);
    for (const std::int64_t id : ids(currency_ids(*batch)))
        require(world.currency.insert(id).second);
    for (const std::int64_t id : ids(stat_ids(*batch)))
        require(world.stats.insert(id).second);
    const HoldState hold{.id = Uuid{}, .event = Uuid{}, .business_id = "hold", .remaining = 100, .has_event = true};
    require(settle_batch_holds(*batch, std::span(&hold, 1), {}).ok());
    for (const HoldWrite &write : hold_writes(*batch))
        require(write.remaining >= 0 && write.remaining <= hold.remaining);
    close_batch(batch);
}

Cents exact(const World &world, Table table, const TargetKey &key, int column)
{
    const auto at = world.states.find(target_of(table, key));
    return at == world.states.end() ? 0 : at->second.shown[column] + at->second.remainder[column];
}

// Added up row by row, from what was folded, by the rules of the contract as they are written.
void require_sums(const World &world, const Rows &rows)
{
    std::map<std::pair<Target, int>, Cents> sums;
    for (const CurrencyPosting &row : rows.currency) {
        require(world.currency.contains(row.id) == row.foldable);
        if (row.foldable)
            sums[{target_of(Table::users, {.user = row.user}), row.escrow ? 1 : 0}] += row.amount;
    }
    for (const auto &[user, amount] : world.adjusted)
        sums[{target_of(Table::users, {.user = user}), 0}] += amount;
    for (const StatPosting &row : rows.stats) {
        require(world.stats.contains(row.id) == (row.foldable && !world.quarantined.contains(row.id)));
        if (!world.stats.contains(row.id))
            continue;
        int sum = -1; // of workers and teams
        if (row.record == "user_kudos")
            sums[{target_of(Table::user_stats, {.user = row.user, .action = row.action}), 0}] += row.amount;
        else if (row.record == "worker_kudos")
            sum = column::kudos;
        else if (row.entry_type == "STAT_RECORD")
            sums[{target_of(Table::user_records, {.user = row.user, .action = row.action, .record = row.record}), 0}] +=
                row.amount;
        else if (row.entry_type == "STAT_CONTRIBUTION")
            sum = row.action == "contributions" ? column::contributions : column::fulfilments;
        if (row.record == "worker_kudos")
            sums[{target_of(Table::worker_stats, {.uuid = row.worker, .action = row.action}), 0}] += row.amount;
        if (sum >= 0)
            sums[{target_of(Table::workers, {.uuid = row.worker}), sum}] += row.amount;
        if (sum >= 0 && row.has_team)
            sums[{target_of(Table::teams, {.uuid = row.team}), sum}] += row.amount;
    }
    for (const auto &[target, sum] : sums) {
        const auto &[table, user, uuid, action, record] = target.first;
        const TargetKey key{.user = user, .uuid = Uuid{uuid}, .action = action, .record = record};
        require(exact(world, table, key, target.second) == sum);
    }
}

void require_floors(const World &world, const Rows &rows)
{
    for (const CurrencyPosting &row : rows.currency)
        if (row.foldable && !row.escrow)
            require(exact(world, Table::users, {.user = row.user}, 0) >= floor_of(oauth_ids[row.user]));
}

std::map<Target, std::pair<Cents, Cents>> unfloored(const World &world)
{
    std::map<Target, std::pair<Cents, Cents>> values;
    for (const auto &[target, state] : world.states)
        if (std::get<0>(target) != Table::users)
            values[target] = {state.shown[0] + state.remainder[0], state.shown[2] + state.remainder[2]};
    return values;
}

// Texts alone: what parses is written and read back the same.
void read_texts(const std::uint8_t *bytes, std::size_t size)
{
    const std::string text(reinterpret_cast<const char *>(bytes), size);
    (void)is_pseudonymous(text);
    Cents floor = 0;
    require(account_floor(text, &floor).ok() && floor == floor_of(text));
    Cents cents = 0;
    const Parsed parsed = parse_cents(text, cents);
    if (parsed != Parsed::exact && parsed != Parsed::rounded)
        return;
    char written[cents_text_size];
    Cents again = 0;
    require(parse_cents({written, format_cents(cents, written)}, again) == Parsed::exact && again == cents);
}

} // namespace
} // namespace kudos

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *bytes, std::size_t size)
{
    using namespace kudos;
    if (size == 0)
        return 0;
    if (bytes[0] % 4 == 0) {
        read_texts(bytes + 1, size - 1);
        return 0;
    }
    Input in(bytes, size);
    const std::uint8_t cut = in.byte() / 4 % 9; // of the 8 events
    const Rows rows = read_rows(in);

    std::set<std::uint8_t> all, first, second;
    for (std::uint8_t event = 0; event < 8; event++) {
        all.insert(event);
        (event < cut ? first : second).insert(event);
    }
    World whole, parts;
    apply(whole, rows, all);
    apply(parts, rows, first);
    apply(parts, rows, second);
    for (const World *world : {&whole, &parts}) {
        require_sums(*world, rows);
        require_floors(*world, rows);
    }
    require(unfloored(whole) == unfloored(parts));
    require(whole.stats == parts.stats && whole.quarantined == parts.quarantined && whole.currency == parts.currency);
    return 0;
}
