// What the unit tests share: short spellings of rows, results that compare and print as a whole.
#pragma once

#include <regex.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <ostream>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "batch.hpp"

namespace kudos {

// Found by argument lookup, hence here and not in kudos::test.

inline bool operator==(const TargetDelta &a, const TargetDelta &b)
{
    return a.key == b.key && std::ranges::equal(a.delta, b.delta) && std::ranges::equal(a.fed, b.fed) &&
           a.has_activity == b.has_activity && a.activity == b.activity;
}

inline bool operator==(const TargetWrite &a, const TargetWrite &b)
{
    return a.index == b.index && a.present == b.present && a.value_changed == b.value_changed &&
           a.remainder_changed == b.remainder_changed && std::ranges::equal(a.shown, b.shown) &&
           std::ranges::equal(a.step, b.step) && std::ranges::equal(a.remainder, b.remainder) &&
           a.touched == b.touched && a.last_active == b.last_active;
}

inline bool operator==(const Settled &a, const Settled &b)
{
    return a.fits == b.fits && a.shown == b.shown && a.remainder == b.remainder;
}

inline bool operator==(const Withheld &a, const Withheld &b)
{
    return a.table == b.table && a.column == b.column && a.cause == b.cause && a.key == b.key;
}

inline bool operator==(const QuarantinedEvent &a, const QuarantinedEvent &b)
{
    return a.event == b.event && a.reason == b.reason && a.claimed_rows == b.claimed_rows;
}

inline bool operator==(const FloorAdjustment &a, const FloorAdjustment &b)
{
    return a.user == b.user && a.amount == b.amount;
}

inline bool operator==(const Consumption &a, const Consumption &b)
{
    return a.business_id == b.business_id && a.amount == b.amount;
}

inline bool operator==(const HoldWrite &a, const HoldWrite &b)
{
    return a.id == b.id && a.remaining == b.remaining && a.released == b.released;
}

namespace test {

// 12.5_kudos is 1250 cents; it does not go through parse_cents, which is under test.
consteval Cents operator""_kudos(const char *text)
{
    Cents cents = 0;
    int places = -1;
    for (; *text != '\0'; text++) {
        if (*text == '.')
            places = 0;
        if (*text < '0' || *text > '9')
            continue;
        cents = cents * 10 + (*text - '0');
        places += places >= 0;
    }
    for (places = std::max(places, 0); places < 2; places++)
        cents *= 10;
    return cents;
}

inline std::string show(Cents cents)
{
    std::string digits;
    for (Cents rest = cents; rest != 0 || digits.size() < 3; rest /= 10)
        digits.insert(digits.begin(), static_cast<char>('0' + static_cast<int>(rest < 0 ? -(rest % 10) : rest % 10)));
    digits.insert(digits.size() - 2, ".");
    return cents < 0 ? "-" + digits : digits;
}

constexpr Uuid uuid(unsigned number)
{
    Uuid made;
    for (std::size_t i = 0; i < 4; i++)
        made.bytes[15 - i] = static_cast<std::uint8_t>(number >> (8 * i));
    return made;
}

inline std::string show(const Uuid &id)
{
    static constexpr char hex[] = "0123456789abcdef";
    std::string text;
    for (const std::uint8_t byte : id.bytes)
        text += {hex[byte >> 4], hex[byte & 15]};
    text.erase(0, std::min(text.find_first_not_of('0'), text.size() - 1));
    return "#" + text;
}

inline std::string show(Table table)
{
    static constexpr const char *names[] = {"users", "user_stats", "worker_stats", "user_records", "workers", "teams"};
    return names[static_cast<int>(table)];
}

// The name of a target as the models spell it: "user_stats 3 image".
inline std::string show(Table table, const TargetKey &key)
{
    std::string name = show(table);
    if (table == Table::users || table == Table::user_stats || table == Table::user_records)
        name += " " + std::to_string(key.user);
    else
        name += " " + show(key.uuid);
    if (table == Table::user_stats || table == Table::worker_stats || table == Table::user_records)
        name.append(" ").append(key.action);
    if (table == Table::user_records)
        name.append(" ").append(key.record);
    return name;
}

template <typename Element> auto list(std::span<Element> span)
{
    return std::vector<std::remove_const_t<Element>>(span.begin(), span.end());
}

template <typename Element> std::vector<const Element *> pointers(const std::vector<Element> &rows)
{
    std::vector<const Element *> all;
    for (const Element &row : rows)
        all.push_back(&row);
    return all;
}

// ---------------------------------------------------------------------------------------------
// Rows. Each is an event of its own, numbered like the row, unless of_event() says otherwise.

inline CurrencyPosting spendable(std::int64_t id, std::int64_t user, Cents amount)
{
    CurrencyPosting row;
    row.id = id;
    row.event = uuid(static_cast<unsigned>(id));
    row.user = user;
    row.amount = amount;
    return row;
}

inline CurrencyPosting escrow(std::int64_t id, std::int64_t user, Cents amount)
{
    CurrencyPosting row = spendable(id, user, amount);
    row.escrow = true;
    return row;
}

inline CurrencyPosting naming(CurrencyPosting row, std::string_view reservation)
{
    row.reservation = reservation;
    row.names_reservation = true;
    return row;
}

template <typename Row> Row of_event(Row row, unsigned event)
{
    row.event = uuid(event);
    return row;
}

template <typename Row> Row unfoldable(Row row)
{
    row.foldable = false;
    return row;
}

inline std::int32_t characters(std::string_view text)
{
    return static_cast<std::int32_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

inline StatPosting stat(std::int64_t id, std::string_view entry_type, std::string_view unit, Cents amount)
{
    StatPosting row;
    row.id = id;
    row.event = uuid(static_cast<unsigned>(id));
    row.entry_type = entry_type;
    row.unit = unit;
    row.amount = amount;
    return row;
}

inline StatPosting of_user(StatPosting row, std::int64_t user)
{
    row.has_user = true;
    row.user = user;
    return row;
}

inline StatPosting of_worker(StatPosting row, unsigned worker)
{
    row.has_worker = true;
    row.worker = uuid(worker);
    return row;
}

inline StatPosting in_team(StatPosting row, unsigned team)
{
    row.has_team = true;
    row.team = uuid(team);
    return row;
}

inline StatPosting with_action(StatPosting row, std::string_view action)
{
    row.has_action = true;
    row.action = action;
    row.action_length = characters(action);
    return row;
}

inline StatPosting with_record(StatPosting row, std::string_view record)
{
    row.has_record = true;
    row.record = record;
    row.record_length = characters(record);
    return row;
}

inline StatPosting with_unit(StatPosting row, std::string_view unit)
{
    row.unit = unit;
    return row;
}

inline StatPosting with_entry_type(StatPosting row, std::string_view entry_type)
{
    row.entry_type = entry_type;
    return row;
}

inline StatPosting touching(StatPosting row, std::int64_t created)
{
    row.touches = true;
    row.created = created;
    return row;
}

inline StatPosting without_user(StatPosting row)
{
    row.has_user = false;
    row.user = 0;
    return row;
}

inline StatPosting without_worker(StatPosting row)
{
    row.has_worker = false;
    row.worker = {};
    return row;
}

inline StatPosting without_action(StatPosting row)
{
    row.has_action = false;
    row.action = {};
    row.action_length = 0;
    return row;
}

inline StatPosting without_record(StatPosting row)
{
    row.has_record = false;
    row.record = {};
    row.record_length = 0;
    return row;
}

inline StatPosting user_kudos(std::int64_t id, std::int64_t user, std::string_view action, Cents amount)
{
    return with_record(with_action(of_user(stat(id, "GENERATION_REWARD", "kudos", amount), user), action),
                       "user_kudos");
}

inline StatPosting worker_kudos(std::int64_t id, unsigned worker, std::string_view action, Cents amount)
{
    return with_record(with_action(of_worker(stat(id, "GENERATION_REWARD", "kudos", amount), worker), action),
                       "worker_kudos");
}

inline StatPosting user_record(std::int64_t id, std::int64_t user, std::string_view type, std::string_view record,
                               std::string_view unit, Cents amount)
{
    return with_record(with_action(of_user(stat(id, "STAT_RECORD", unit, amount), user), type), record);
}

inline StatPosting contributions(std::int64_t id, unsigned worker, Cents amount)
{
    return with_action(of_worker(stat(id, "STAT_CONTRIBUTION", "things", amount), worker), "contributions");
}

inline StatPosting fulfilments(std::int64_t id, unsigned worker, Cents amount)
{
    return with_action(of_worker(stat(id, "STAT_CONTRIBUTION", "count", amount), worker), "fulfilments");
}

inline StatPosting activity(std::int64_t id, std::int64_t user, std::int64_t created)
{
    return touching(with_record(of_user(stat(id, "STAT_ACTIVITY", "count", 0), user), "last_active"), created);
}

// ---------------------------------------------------------------------------------------------
// The database as the tests suppose it

inline constexpr std::string_view record_types[] = {"CONTRIBUTION", "USAGE", "FULFILLMENT", "REQUEST", "STYLE"};

inline ProjectionLimits usual_limits()
{
    return {.record_types = record_types};
}

constexpr ColumnType bigint_column{.integer = true,
                                   .lowest = Cents{std::numeric_limits<std::int64_t>::min()} * 100,
                                   .highest = Cents{std::numeric_limits<std::int64_t>::max()} * 100};
constexpr ColumnType integer_column{.integer = true,
                                    .lowest = Cents{std::numeric_limits<std::int32_t>::min()} * 100,
                                    .highest = Cents{std::numeric_limits<std::int32_t>::max()} * 100};
constexpr ColumnType numeric_column{
    .integer = false, .lowest = -999'999'999'999'999'999.99_kudos, .highest = 999'999'999'999'999'999.99_kudos};

inline std::vector<ColumnType> columns_of(Table table)
{
    switch (table) {
    case Table::users:
        return {bigint_column, integer_column};
    case Table::user_stats:
    case Table::worker_stats:
        return {bigint_column};
    case Table::user_records:
        return {numeric_column};
    case Table::workers:
    case Table::teams:
    case Table::reservations:
    case Table::ledger_rows:
    case Table::stat_rows:
        return {bigint_column, bigint_column, integer_column};
    }
    return {};
}

inline constexpr Table all_tables[] = {Table::users,        Table::user_stats, Table::worker_stats,
                                       Table::user_records, Table::workers,    Table::teams};

inline void expect_ok(const Status &status)
{
    EXPECT_TRUE(status.ok()) << status.message;
}

// Owns a batch and the rows that it borrows.
class OpenBatch {
  public:
    OpenBatch(std::vector<CurrencyPosting> currency_rows, std::vector<StatPosting> stat_rows,
              std::vector<Withheld> withheld = {})
        : currency(std::move(currency_rows)),
          stats(std::move(stat_rows))
    {
        expect_ok(open_batch(currency, stats, withheld, &batch));
    }
    OpenBatch(const OpenBatch &) = delete;
    OpenBatch &operator=(const OpenBatch &) = delete;
    ~OpenBatch() { close_batch(batch); }

    Batch &operator*() { return *batch; }

    void validate(const std::vector<std::int64_t> &existing_users, const ProjectionLimits &limits = usual_limits())
    {
        expect_ok(validate_batch(*batch, existing_users, limits));
    }
    void validate() { validate(list(named_users(*batch))); }
    void fold() { expect_ok(fold_batch(*batch)); }
    void validate_and_fold()
    {
        validate();
        fold();
    }
    void settle(Table table, const std::vector<TargetState> &states) { settle(table, columns_of(table), states); }
    void settle(Table table, const std::vector<ColumnType> &types, const std::vector<TargetState> &states)
    {
        ASSERT_EQ(deltas(*batch, table).size(), states.size());
        expect_ok(settle_table(*batch, table, types, states));
    }

  private:
    std::vector<CurrencyPosting> currency;
    std::vector<StatPosting> stats;
    Batch *batch = nullptr;
};

// A POSIX pattern for whole texts (g++ 12 warns of its own <regex> when sanitizers are on).
class Pattern {
  public:
    explicit Pattern(const std::string &expression)
    {
        if (regcomp(&compiled, ("^(" + expression + ")$").c_str(), REG_EXTENDED) != 0)
            throw std::invalid_argument(expression);
    }
    Pattern(const Pattern &) = delete;
    Pattern &operator=(const Pattern &) = delete;
    ~Pattern() { regfree(&compiled); }

    // The text of each group, the whole at 0; nothing where the text does not match.
    std::vector<std::string> groups(const std::string &text) const
    {
        std::vector<regmatch_t> found(compiled.re_nsub + 1);
        if (text.find('\0') != std::string::npos ||
            regexec(&compiled, text.c_str(), found.size(), found.data(), 0) != 0)
            return {};
        std::vector<std::string> groups;
        for (const regmatch_t &group : found)
            if (&group != &found.front())
                groups.push_back(group.rm_so < 0 ? ""
                                                 : text.substr(static_cast<std::size_t>(group.rm_so),
                                                               static_cast<std::size_t>(group.rm_eo - group.rm_so)));
        return groups;
    }
    bool matches(const std::string &text) const { return !groups(text).empty(); }

  private:
    regex_t compiled{};
};

// Fixed seeds: a failure is the same on every machine.
class Random {
  public:
    explicit Random(std::uint64_t seed) : engine(seed) {}

    std::uint64_t bits() { return engine(); }
    std::size_t below(std::size_t bound) { return static_cast<std::size_t>(engine() % bound); }
    std::int64_t between(std::int64_t low, std::int64_t high)
    {
        return low + static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(high - low + 1));
    }
    bool one_in(std::size_t count) { return below(count) == 0; }
    template <typename Range> const auto &pick(const Range &range) { return range[below(std::size(range))]; }
    template <typename Element> void shuffle(std::vector<Element> &elements)
    {
        for (std::size_t i = elements.size(); i > 1; i--)
            std::swap(elements[i - 1], elements[below(i)]);
    }

  private:
    std::mt19937_64 engine;
};

} // namespace test

// ---------------------------------------------------------------------------------------------
// How a failed comparison prints

template <std::size_t Size> std::string show_all(const Cents (&values)[Size])
{
    std::string text;
    for (const Cents value : values)
        text += (text.empty() ? "" : " ") + test::show(value);
    return "[" + text + "]";
}

inline void PrintTo(const Uuid &id, std::ostream *out)
{
    *out << test::show(id);
}

inline void PrintTo(const TargetKey &key, std::ostream *out)
{
    *out << "{user " << key.user << ", uuid " << test::show(key.uuid) << ", action \"" << key.action << "\", record \""
         << key.record << "\"}";
}

inline void PrintTo(const TargetDelta &delta, std::ostream *out)
{
    PrintTo(delta.key, out);
    *out << " " << show_all(delta.delta) << " fed " << delta.fed[0] << delta.fed[1] << delta.fed[2];
    if (delta.has_activity)
        *out << " active " << delta.activity;
}

inline void PrintTo(const TargetWrite &write, std::ostream *out)
{
    *out << "{" << write.index << (write.present ? " update" : " insert") << (write.value_changed ? " value" : "")
         << (write.remainder_changed ? " remainder" : "") << (write.touched ? " touch" : "") << ", shown "
         << show_all(write.shown) << ", step " << show_all(write.step) << ", remainder " << show_all(write.remainder)
         << ", active " << write.last_active << "}";
}

inline void PrintTo(const Settled &settled, std::ostream *out)
{
    *out << "{" << (settled.fits ? "fits" : "does not fit") << ", shown " << test::show(settled.shown) << ", remainder "
         << test::show(settled.remainder) << "}";
}

inline void PrintTo(const Withheld &held, std::ostream *out)
{
    *out << "{" << test::show(held.table) << " column " << static_cast<int>(held.column) << " "
         << cause_text(held.cause) << " ";
    PrintTo(held.key, out);
    *out << "}";
}

inline void PrintTo(Reason reason, std::ostream *out)
{
    *out << (reason == Reason::none ? "none" : reason_text(reason));
}

inline void PrintTo(const QuarantinedEvent &event, std::ostream *out)
{
    *out << test::show(event.event) << ": ";
    PrintTo(event.reason, out);
    *out << ", " << event.claimed_rows << " rows";
}

inline void PrintTo(const FloorAdjustment &adjustment, std::ostream *out)
{
    *out << "{user " << adjustment.user << ", " << test::show(adjustment.amount) << "}";
}

inline void PrintTo(const Consumption &consumption, std::ostream *out)
{
    *out << "{\"" << consumption.business_id << "\", " << test::show(consumption.amount) << "}";
}

inline void PrintTo(const HoldWrite &write, std::ostream *out)
{
    *out << "{" << test::show(write.id) << ", " << test::show(write.remaining) << (write.released ? ", released" : "")
         << "}";
}

} // namespace kudos
