// What must hold for any rows in any batches, against models that are written out in long hand here.
// The model knows what a row feeds from having made it; it never asks core.

#include <map>
#include <set>

#include "floor.hpp"
#include "holds.hpp"
#include "support.hpp"

namespace kudos {
namespace {

using namespace test;

using Ids = std::vector<std::int64_t>;
using Values = std::map<std::string, Cents>;

struct Feed {
    Table table{};
    int column = 0;
    TargetKey key{};
    Cents amount = 0; // of a touch: its time
};

template <typename Row> struct Made {
    Row row;
    std::vector<Feed> feeds;
};

struct Rows {
    std::vector<Made<CurrencyPosting>> currency;
    std::vector<Made<StatPosting>> stats;
};

std::string name_of(Table table, int column, const TargetKey &key)
{
    return show(table, key) + " column " + std::to_string(column);
}

std::string name_of(const Feed &feed)
{
    return name_of(feed.table, feed.column, feed.key);
}

bool is_touch(const Feed &feed)
{
    return feed.table == Table::users && feed.column == column::user_activity;
}

void add(Values &values, const Feed &feed)
{
    const auto [at, first] = values.try_emplace(name_of(feed), feed.amount);
    if (!first)
        at->second = is_touch(feed) ? std::max(at->second, feed.amount) : at->second + feed.amount;
}

constexpr std::string_view oauth_ids[] = {"anon", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "g_1", "d_2", "<wiped>"};
constexpr Cents floors[] = {-50_kudos, 14_kudos, 25_kudos, 25_kudos, 25_kudos};
constexpr std::int64_t users = std::size(oauth_ids); // 1, 2, ...
constexpr unsigned present_workers = 3, workers = 5; // 1, 2, ... of which the first are there
constexpr unsigned present_teams = 2, teams = 3;
constexpr std::string_view actions[] = {"image", "text", "accumulated", ""};

Ids all_users()
{
    Ids ids;
    for (std::int64_t user = 1; user <= users; user++)
        ids.push_back(user);
    return ids;
}

// Mostly small and often at the edge of a rounding.
Cents random_amount(Random &random)
{
    static constexpr Cents edges[] = {0, 1, 40, 49, 50, 51, 99, 100, 150, 250};
    const Cents amount = random.one_in(3) ? random.between(0, 100'000) : random.pick(edges);
    return random.one_in(2) ? -amount : amount;
}

Made<CurrencyPosting> make_currency(Random &random, std::int64_t id)
{
    const std::int64_t user = random.between(1, users);
    const Cents amount = random_amount(random);
    if (random.one_in(3))
        return {escrow(id, user, amount), {{Table::users, column::user_evaluating, {.user = user}, amount}}};
    return {spendable(id, user, amount), {{Table::users, column::user_kudos, {.user = user}, amount}}};
}

Made<StatPosting> make_stat(Random &random, std::int64_t id)
{
    const std::int64_t user = random.between(1, users);
    const auto worker = static_cast<unsigned>(random.between(1, workers));
    const auto team = static_cast<unsigned>(random.between(1, teams));
    const std::string_view action = random.pick(actions);
    const Cents amount = random_amount(random);
    const TargetKey worker_key{.uuid = uuid(worker)};

    Made<StatPosting> made;
    bool names_user = true;
    switch (random.below(6)) {
    case 0:
        made = {user_kudos(id, user, action, amount),
                {{Table::user_stats, 0, {.user = user, .action = action}, amount}}};
        break;
    case 1:
        made = {user_record(id, user, "USAGE", action, "things", amount),
                {{Table::user_records, 0, {.user = user, .action = "USAGE", .record = action}, amount}}};
        break;
    case 2:
        made = {activity(id, user, 0), {}};
        break;
    case 3:
        names_user = false;
        made = {worker_kudos(id, worker, action, amount),
                {{Table::worker_stats, 0, {.uuid = uuid(worker), .action = action}, amount},
                 {Table::workers, column::kudos, worker_key, amount}}};
        break;
    case 4:
        names_user = false;
        made = {contributions(id, worker, amount), {{Table::workers, column::contributions, worker_key, amount}}};
        break;
    default:
        names_user = false;
        made = {fulfilments(id, worker, amount), {{Table::workers, column::fulfilments, worker_key, amount}}};
    }
    if (!names_user && random.one_in(2)) {
        made.row = in_team(made.row, team);
        made.feeds.push_back({Table::teams, made.feeds.back().column, {.uuid = uuid(team)}, amount});
    }
    if (names_user && (made.feeds.empty() || random.one_in(3))) {
        const std::int64_t created = random.between(-1'000, 1'000);
        made.row = touching(made.row, created);
        made.feeds.push_back({Table::users, column::user_activity, {.user = user}, created});
    }
    return made;
}

Rows make_rows(Random &random, std::size_t count)
{
    Rows rows;
    for (std::size_t i = 1; i <= count; i++) {
        rows.currency.push_back(make_currency(random, static_cast<std::int64_t>(i)));
        rows.stats.push_back(make_stat(random, static_cast<std::int64_t>(i)));
    }
    return rows;
}

// Parts in any order, each by id as a claim is.
template <typename Row> std::vector<std::vector<Row>> split(Random &random, std::vector<Row> rows, std::size_t parts)
{
    random.shuffle(rows);
    std::vector<std::vector<Row>> all(parts);
    for (const Row &row : rows)
        all[random.below(parts)].push_back(row);
    for (std::vector<Row> &part : all)
        std::ranges::sort(part, {}, [](const Row &made) { return made.row.id; });
    return all;
}

std::vector<Rows> split(Random &random, const Rows &rows, std::size_t parts)
{
    const auto currency = split(random, rows.currency, parts);
    const auto stats = split(random, rows.stats, parts);
    std::vector<Rows> all;
    for (std::size_t i = 0; i < parts; i++)
        all.push_back({currency[i], stats[i]});
    return all;
}

template <typename Row> std::vector<Row> postings(const std::vector<Made<Row>> &rows)
{
    std::vector<Row> all;
    for (const Made<Row> &made : rows)
        all.push_back(made.row);
    return all;
}

Cents rounded_in_long_hand(Cents exact)
{
    const Cents magnitude = exact < 0 ? -exact : exact;
    const Cents units = magnitude / 100 + (magnitude % 100 >= 50 ? 1 : 0);
    return (exact < 0 ? -units : units) * 100;
}

// ---------------------------------------------------------------------------------------------
// A database of targets, written as the server layer would

class World {
  public:
    std::vector<FloorAdjustment> adjustments;

    void open_user(std::int64_t user, Cents kudos, Cents evaluating)
    {
        open(Table::users, {.user = user}, {kudos, evaluating}).oauth_id = oauth_ids[user - 1];
    }
    TargetState &open(Table table, const TargetKey &key, std::initializer_list<Cents> exact)
    {
        TargetState &state = targets[show(table, key)];
        state.present = true;
        state.last_active = -2'000;
        int c = 0;
        for (const Cents value : exact) {
            state.shown[c] = rounded_in_long_hand(value);
            state.remainder[c] = value - state.shown[c];
            c++;
        }
        return state;
    }

    // Attempts until nothing is refused. Gives the rows that were folded.
    Rows apply(const Rows &rows)
    {
        for (std::vector<Withheld> withheld;;) {
            OpenBatch batch(postings(rows.currency), postings(rows.stats), withheld);
            batch.validate(all_users());
            EXPECT_EQ(list(quarantined_events(*batch)), std::vector<QuarantinedEvent>{});
            batch.fold();
            expect_ok(skip_missing_workers(*batch, existing_workers()));
            std::map<std::string, TargetState> written = targets;
            for (const Table table : all_tables)
                write(batch, table, written);
            if (refusals(*batch).empty()) {
                targets = written;
                const auto created = list(floor_adjustments(*batch));
                adjustments.insert(adjustments.end(), created.begin(), created.end());
                return {folded(rows.currency, currency_ids(*batch)), folded(rows.stats, stat_ids(*batch))};
            }
            for (const Withheld &refusal : refusals(*batch)) {
                withheld.push_back(refusal);
                refused.insert(name_of(refusal.table, refusal.column, refusal.key));
            }
        }
    }

    Values exact() const
    {
        return each_column([](const TargetState &state, std::size_t c) { return state.shown[c] + state.remainder[c]; });
    }
    Values shown() const
    {
        return each_column([](const TargetState &state, std::size_t c) { return state.shown[c]; });
    }
    bool has(Table table, const TargetKey &key) const { return targets.contains(show(table, key)); }
    bool has_refused(const Feed &feed) const { return refused.contains(name_of(feed)); }

  private:
    std::map<std::string, TargetState> targets;
    std::set<std::string> refused;

    static std::vector<Uuid> existing_workers()
    {
        std::vector<Uuid> all;
        for (unsigned worker = 1; worker <= present_workers; worker++)
            all.push_back(uuid(worker));
        return all;
    }

    template <typename Row>
    static std::vector<Made<Row>> folded(const std::vector<Made<Row>> &rows, std::span<const std::int64_t> ids)
    {
        std::vector<Made<Row>> all;
        for (const Made<Row> &made : rows)
            if (std::ranges::find(ids, made.row.id) != ids.end())
                all.push_back(made);
        EXPECT_EQ(all.size(), ids.size());
        return all;
    }

    static void write(OpenBatch &batch, Table table, std::map<std::string, TargetState> &written)
    {
        std::vector<TargetState> states;
        for (const TargetDelta &delta : deltas(*batch, table)) {
            const auto at = written.find(show(table, delta.key));
            states.push_back(at == written.end() ? TargetState{} : at->second);
        }
        batch.settle(table, states);
        for (const TargetWrite &write : writes(*batch, table)) {
            const TargetState &before = states[write.index];
            TargetState &after = written[show(table, deltas(*batch, table)[write.index].key)];
            EXPECT_EQ(write.present, before.present);
            after = before;
            after.present = true;
            after.last_active = write.last_active;
            for (int c = 0; c < max_value_columns; c++) {
                after.shown[c] += write.step[c];
                after.remainder[c] = write.remainder[c];
                EXPECT_EQ(after.shown[c], write.shown[c]);
            }
        }
    }

    template <typename Read> Values each_column(Read read) const
    {
        Values values;
        for (const Table table : all_tables)
            for (const auto &[name, state] : targets)
                if (name.starts_with(show(table) + " "))
                    for (std::size_t c = 0; c < columns_of(table).size(); c++)
                        values[name + " column " + std::to_string(c)] = read(state, c);
        for (const auto &[name, state] : targets)
            if (name.starts_with("users "))
                values[name + " column 2"] = state.last_active;
        return values;
    }
};

// So rich that no floor is met.
World rich_world(Random &random)
{
    World world;
    for (std::int64_t user = 1; user <= users; user++)
        world.open_user(user, 1'000'000_kudos + random.between(-99, 99), random.between(-500, 500));
    for (unsigned worker = 1; worker <= present_workers; worker++)
        world.open(Table::workers, {.uuid = uuid(worker)},
                   {random.between(-500, 500), random.between(-500, 500), random.between(-500, 500)});
    for (unsigned team = 1; team <= present_teams; team++)
        world.open(Table::teams, {.uuid = uuid(team)}, {random.between(-500, 500), 0, 0});
    return world;
}

bool is_missing(const Feed &feed)
{
    switch (feed.table) {
    case Table::workers:
    case Table::worker_stats:
        return feed.key.uuid > uuid(present_workers);
    case Table::teams:
        return feed.key.uuid > uuid(present_teams);
    default:
        return false;
    }
}

template <typename Row> void add_all(Values &values, const std::vector<Made<Row>> &rows)
{
    for (const Made<Row> &made : rows)
        for (const Feed &feed : made.feeds)
            if (!is_missing(feed))
                add(values, feed);
}

void add_all(Values &values, const Rows &rows)
{
    add_all(values, rows.currency);
    add_all(values, rows.stats);
}

// What the columns show for exact values: users' activity and the records hold the value itself.
Values rounded_in_long_hand(Values values)
{
    for (auto &[name, value] : values)
        if (!name.starts_with("user_records ") && !(name.starts_with("users ") && name.ends_with(" column 2")))
            value = rounded_in_long_hand(value);
    return values;
}

TEST(Exactness, DoesNotDependOnTheBatches)
{
    for (std::uint64_t seed = 1; seed <= 60; seed++) {
        SCOPED_TRACE(seed);
        Random random(seed);
        const World opening = rich_world(random);
        const Rows rows = make_rows(random, 60);
        Values expected = opening.exact();
        add_all(expected, rows);

        for (const std::size_t parts : {std::size_t{1}, std::size_t{2}, 1 + random.below(30), std::size_t{200}}) {
            World world = opening;
            for (const Rows &part : split(random, rows, parts)) {
                const Rows folded = world.apply(part);
                EXPECT_EQ(folded.currency.size(), part.currency.size());
                EXPECT_EQ(folded.stats.size(), part.stats.size());
            }
            ASSERT_EQ(world.exact(), expected) << parts << " batches";
            ASSERT_EQ(world.shown(), rounded_in_long_hand(expected)) << parts << " batches";
            EXPECT_EQ(world.adjustments, std::vector<FloorAdjustment>{});
        }
    }
}

TEST(Exactness, HoldsAfterEveryBatch)
{
    Random random(99);
    World world = rich_world(random);
    Values expected = world.exact();
    for (int batch = 0; batch < 300; batch++) {
        const Rows rows = make_rows(random, random.below(5));
        add_all(expected, rows);
        world.apply(rows);
        ASSERT_EQ(world.exact(), expected) << batch;
        ASSERT_EQ(world.shown(), rounded_in_long_hand(expected)) << batch;
    }
}

TEST(Exactness, CountsTheFloorRowsToTheBalance)
{
    for (std::uint64_t seed = 1; seed <= 40; seed++) {
        SCOPED_TRACE(seed);
        Random random(seed);
        World world;
        std::map<std::int64_t, Cents> balances;
        for (std::int64_t user = 1; user <= users; user++) {
            balances[user] = random.between(-10'000, 10'000);
            world.open_user(user, balances[user], 0);
        }
        std::vector<FloorAdjustment> expected;
        const Rows rows = make_rows(random, 80);
        for (const Rows &part : split(random, {rows.currency, {}}, 12)) {
            std::map<std::int64_t, Cents> sums;
            for (const Made<CurrencyPosting> &made : part.currency)
                if (!made.row.escrow)
                    sums[made.row.user] += made.row.amount;
            for (const auto &[user, sum] : sums) {
                const Cents floor = floors[user - 1];
                balances[user] += sum;
                if (balances[user] < floor) {
                    expected.push_back({user, floor - balances[user]});
                    balances[user] = floor;
                }
            }
            world.apply(part);
            ASSERT_EQ(world.adjustments, expected);
            for (const auto &[user, balance] : balances)
                ASSERT_EQ(world.exact()[name_of(Table::users, column::user_kudos, {.user = user})], balance) << user;
        }
        EXPECT_FALSE(expected.empty());
    }
}

TEST(Overflow, DelaysOnlyTheRowsOfTheFullTarget)
{
    std::size_t delayed = 0;
    for (std::uint64_t seed = 1; seed <= 60; seed++) {
        SCOPED_TRACE(seed);
        Random random(seed);
        World world = rich_world(random);
        world.open_user(2, 1'000'000_kudos, 2'147'483'647_kudos);
        world.open(Table::workers, {.uuid = uuid(1)}, {0, 0, -2'147'483'648_kudos});
        world.open(Table::teams, {.uuid = uuid(1)}, {0, 9'223'372'036'854'775'807_kudos, 0});
        world.open(Table::user_stats, {.user = 3, .action = "image"}, {-9'223'372'036'854'775'808_kudos});
        Values expected = world.exact();
        const Rows rows = make_rows(random, 60);
        const Rows folded = world.apply(rows);

        add_all(expected, folded);
        EXPECT_EQ(world.exact(), expected);
        const auto expect_reason = [&](const auto &all, const auto &some) {
            for (const auto &made : all) {
                const bool is_folded =
                    std::ranges::any_of(some, [&](const auto &other) { return other.row.id == made.row.id; });
                const bool is_refused =
                    std::ranges::any_of(made.feeds, [&](const Feed &feed) { return world.has_refused(feed); });
                EXPECT_EQ(is_folded, !is_refused) << made.row.id;
                delayed += !is_folded;
            }
        };
        expect_reason(rows.currency, folded.currency);
        expect_reason(rows.stats, folded.stats);
    }
    EXPECT_GT(delayed, 0u);
}

// ---------------------------------------------------------------------------------------------
// Which rows fold

// Each fed column and each touch of the batch.
Values fed_by(Batch &batch)
{
    Values values;
    for (const Table table : all_tables)
        for (const TargetDelta &delta : deltas(batch, table)) {
            for (int c = 0; c < max_value_columns; c++)
                if (delta.fed[c])
                    values[name_of(table, c, delta.key)] = delta.delta[c];
                else
                    EXPECT_EQ(delta.delta[c], 0);
            if (delta.has_activity)
                values[name_of(table, column::user_activity, delta.key)] = delta.activity;
        }
    return values;
}

bool holds_back(const Withheld &held, const Feed &feed)
{
    return held.table == feed.table && held.key == feed.key &&
           (held.column == column::any || held.column == feed.column);
}

template <typename Row> bool is_held_back(const std::vector<Withheld> &withheld, const Made<Row> &made)
{
    for (const Withheld &held : withheld)
        for (const Feed &feed : made.feeds)
            if (holds_back(held, feed))
                return true;
    return false;
}

TEST(WithheldTargets, GetEveryRowIntoAllItsTargetsOrNone)
{
    for (std::uint64_t seed = 1; seed <= 200; seed++) {
        SCOPED_TRACE(seed);
        Random random(seed);
        const Rows rows = make_rows(random, 50);
        std::vector<Withheld> withheld;
        for (std::size_t count = random.below(6); count > 0; count--) {
            const auto feeds = random.one_in(4) ? random.pick(rows.currency).feeds : random.pick(rows.stats).feeds;
            const Feed &feed = random.pick(feeds);
            const bool whole = feed.table != Table::users && random.one_in(2);
            withheld.push_back({.table = feed.table,
                                .column = static_cast<std::int8_t>(whole ? column::any : feed.column),
                                .key = feed.key});
        }

        Ids currency, stats;
        Values expected;
        for (const auto &made : rows.currency)
            if (!is_held_back(withheld, made)) {
                currency.push_back(made.row.id);
                for (const Feed &feed : made.feeds)
                    add(expected, feed);
            }
        for (const auto &made : rows.stats)
            if (!is_held_back(withheld, made)) {
                stats.push_back(made.row.id);
                for (const Feed &feed : made.feeds)
                    add(expected, feed);
            }

        OpenBatch batch(postings(rows.currency), postings(rows.stats), withheld);
        batch.validate(all_users());
        batch.fold();
        EXPECT_EQ(list(currency_ids(*batch)), currency);
        EXPECT_EQ(list(stat_ids(*batch)), stats);
        EXPECT_EQ(fed_by(*batch), expected);
    }
}

// A row that only this reason holds for.
StatPosting make_invalid(Random &random, std::int64_t id, Reason reason)
{
    switch (reason) {
    case Reason::missing_user:
        return user_kudos(id, users + random.between(1, 9), "image", 1);
    case Reason::stat_action_too_long:
        return worker_kudos(id, 1, "a statistic's action too long", 1);
    case Reason::record_too_long:
        return user_record(id, 1, "USAGE", "a name of a record that is too long", "things", 1);
    case Reason::invalid_user_kudos:
        return with_unit(user_kudos(id, 1, "image", 1), "count");
    case Reason::invalid_worker_kudos:
        return without_worker(worker_kudos(id, 1, "image", 1));
    case Reason::invalid_stat_record:
        return user_record(id, 1, "USE", "image", "things", 1);
    case Reason::invalid_stat_record_unit:
        return user_record(id, 1, "USAGE", "image", "count", 1);
    case Reason::invalid_stat_contribution:
        return with_action(contributions(id, 1, 1), "uptime");
    case Reason::invalid_stat_activity:
        return with_unit(activity(id, 1, 1), "kudos");
    default:
        return stat(id, "TRANSFER", "kudos", 1);
    }
}

TEST(QuarantineOfRandomEvents, TakesThemWholeWithTheReasonOfTheLowestId)
{
    for (std::uint64_t seed = 1; seed <= 200; seed++) {
        SCOPED_TRACE(seed);
        Random random(seed);
        std::vector<Made<StatPosting>> rows;
        std::map<unsigned, Reason> reasons;
        for (std::int64_t id = 1; id <= 60; id++) {
            const auto event = static_cast<unsigned>(random.between(1, 15));
            Made<StatPosting> made = make_stat(random, id);
            if (random.one_in(8)) {
                const auto reason =
                    static_cast<Reason>(random.between(1, static_cast<int>(Reason::unknown_projection)));
                made = {make_invalid(random, id, reason), {}};
                reasons.try_emplace(event, reason);
            }
            made.row = of_event(made.row, event);
            rows.push_back(made);
        }
        std::vector<QuarantinedEvent> quarantined;
        for (const auto &[event, reason] : reasons) {
            const auto of_this = [id = uuid(event)](const auto &made) { return made.row.event == id; };
            quarantined.push_back({uuid(event), reason, static_cast<std::size_t>(std::ranges::count_if(rows, of_this))});
        }
        Ids folded;
        Values expected;
        for (const Made<StatPosting> &made : rows)
            if (!reasons.contains(made.row.event.bytes[15])) {
                folded.push_back(made.row.id);
                for (const Feed &feed : made.feeds)
                    add(expected, feed);
            }

        OpenBatch batch({}, postings(rows));
        batch.validate(all_users());
        batch.fold();
        EXPECT_EQ(list(quarantined_events(*batch)), quarantined);
        EXPECT_EQ(list(stat_ids(*batch)), folded);
        EXPECT_EQ(fed_by(*batch), expected);
    }
}

// ---------------------------------------------------------------------------------------------
// Holds

struct ModelHold {
    std::string business_id;
    unsigned event = 0; // 0: of none
    Cents remaining = 0;
    bool released = false;
};

TEST(Holds, NeverGoNegativeAndFollowTheirDebitsAndEvents)
{
    static constexpr std::string_view names[] = {"a", "b", "c", "d", "no such hold"};
    for (std::uint64_t seed = 1; seed <= 200; seed++) {
        SCOPED_TRACE(seed);
        Random random(seed);
        std::map<unsigned, ModelHold> holds; // by id
        for (unsigned id = 1; id <= 4; id++)
            holds[id] = {std::string(names[4 - id]), static_cast<unsigned>(random.below(4)), random.between(0, 30'000)};
        std::vector<Made<CurrencyPosting>> rows;
        for (std::int64_t id = 1; id <= 40; id++) {
            Made<CurrencyPosting> made = make_currency(random, id);
            made.row = of_event(made.row, static_cast<unsigned>(random.between(1, 6)));
            rows.push_back(random.one_in(2) ? Made<CurrencyPosting>{naming(made.row, random.pick(names)), {}} : made);
        }

        std::multiset<unsigned> unapplied;
        for (const auto &made : rows)
            unapplied.insert(made.row.event.bytes[15]);
        for (const auto &part : split(random, rows, 8)) {
            std::vector<HoldState> states;
            for (const auto &[id, hold] : holds)
                if (!hold.released)
                    states.push_back({.id = uuid(id),
                                      .event = uuid(hold.event),
                                      .business_id = hold.business_id,
                                      .remaining = hold.remaining,
                                      .has_event = hold.event != 0});

            std::map<unsigned, ModelHold> expected = holds;
            std::set<unsigned> folded, touched;
            for (const auto &made : part) {
                folded.insert(made.row.event.bytes[15]);
                unapplied.erase(unapplied.find(made.row.event.bytes[15]));
                for (auto &[id, hold] : expected)
                    if (!hold.released && made.row.names_reservation && made.row.reservation == hold.business_id &&
                        made.row.amount < 0 && !made.row.escrow) {
                        hold.remaining = std::max<Cents>(0, hold.remaining + made.row.amount);
                        touched.insert(id);
                    }
            }
            std::vector<Uuid> pending;
            for (const unsigned event : folded)
                if (unapplied.contains(event))
                    pending.push_back(uuid(event));
            random.shuffle(pending);
            std::vector<HoldWrite> expected_writes;
            for (auto &[id, hold] : expected) {
                const bool complete = folded.contains(hold.event) && !unapplied.contains(hold.event);
                if (hold.released || !(touched.contains(id) || complete))
                    continue;
                if (complete)
                    hold.remaining = 0;
                hold.released = hold.remaining == 0;
                expected_writes.push_back({uuid(id), hold.remaining, hold.released});
            }

            OpenBatch batch(postings(part), {});
            batch.validate_and_fold();
            expect_ok(settle_batch_holds(*batch, states, pending));
            ASSERT_EQ(list(hold_writes(*batch)), expected_writes);
            for (const HoldWrite &write : hold_writes(*batch)) {
                const unsigned id = write.id.bytes[15];
                EXPECT_GE(write.remaining, 0);
                EXPECT_LE(write.remaining, holds[id].remaining);
            }
            holds = expected;
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Amounts

Cents random_cents(Random &random)
{
    Cents cents = 0;
    for (std::size_t digits = random.below(31); digits > 0; digits--)
        cents = cents * 10 + random.between(0, 9);
    return random.one_in(2) ? -cents : cents;
}

void expect_settles_half_away_from_zero(Cents exact)
{
    const Settled settled = settle({.integer = true,
                                    .lowest = -1'000'000'000'000'000'000'000'000'000'000_kudos,
                                    .highest = 1'000'000'000'000'000'000'000'000'000'000_kudos},
                                   exact);
    const Cents shown = rounded_in_long_hand(exact);
    EXPECT_EQ(settled, (Settled{.fits = true, .shown = shown, .remainder = exact - shown})) << show(exact);
    EXPECT_EQ(settled.shown % 100, 0) << show(exact);
    EXPECT_GE(settled.remainder, -50) << show(exact);
    EXPECT_LE(settled.remainder, 50) << show(exact);
}

TEST(Settle, RoundsHalfAwayFromZeroAndKeepsLessThanAUnit)
{
    for (Cents exact = -20'000; exact <= 20'000; exact++)
        expect_settles_half_away_from_zero(exact);
    Random random(3);
    for (int i = 0; i < 20'000; i++)
        expect_settles_half_away_from_zero(random_cents(random));
}

std::string written(Cents cents)
{
    char text[cents_text_size];
    return {text, format_cents(cents, text)};
}

void expect_reads_as(const std::string &text, Cents expected)
{
    Cents cents = -1;
    EXPECT_EQ(parse_cents(text, cents), Parsed::exact) << text;
    EXPECT_EQ(cents, expected) << text;
}

TEST(Amounts, ReadBackAsTheyWereWritten)
{
    Random random(5);
    for (int i = 0; i < 20'000; i++) {
        const Cents cents = i < 400 ? i - 200 : random_cents(random);
        const std::string text = written(cents);
        EXPECT_EQ(text, show(cents));
        expect_reads_as(text, cents);
        expect_reads_as(text + "000", cents);
        expect_reads_as((cents < 0 ? "" : "-") + text.substr(cents < 0), -cents);
    }
}

TEST(Amounts, ReadBackWithThePointMovedIntoAnExponent)
{
    Random random(6);
    for (int i = 0; i < 20'000; i++) {
        const Cents cents = random_cents(random);
        std::string digits = written(cents < 0 ? -cents : cents);
        digits.erase(digits.size() - 3, 1);
        const std::size_t point = random.below(digits.size() + 1);
        const int exponent = static_cast<int>(digits.size()) - 2 - static_cast<int>(point);
        digits.insert(point, ".");
        expect_reads_as((cents < 0 ? "-" : "") + digits + (exponent < 0 ? "e" : "e+") + std::to_string(exponent),
                        cents);
    }
}

} // namespace
} // namespace kudos
