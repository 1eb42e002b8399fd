// The projections: which tables and columns the fold writes, and how a column's new value follows
// from its exact value (contract, section 3).
#pragma once

#include <cstdint>
#include <string_view>

#include "amount.hpp"
#include "posting.hpp"

namespace kudos {

enum class Table : std::uint8_t {
    users,
    user_stats,
    worker_stats,
    user_records,
    workers,
    teams,
    // Not summed, but what can be stuck like a target: a hold, keyed by its business id (action) and event
    // (uuid); and the rows of the queue themselves, keyed by their id (user) or their event (uuid).
    reservations,
    ledger_rows,
    stat_rows,
};
constexpr int table_count = 6; // that are summed
constexpr int max_value_columns = 3;

// Positions of the value columns of each table; the stats and records have the one at 0.
namespace column {
constexpr int user_kudos = 0;
constexpr int user_evaluating = 1;
// Not summed, but a target of its own: a touch of users.last_active.
constexpr int user_activity = 2;
// Whether the user exists at all, which validation asks of every stat row that names him.
constexpr int user_existence = 3;
constexpr int kudos = 0;
constexpr int contributions = 1;
constexpr int fulfilments = 2;
constexpr int value = 0;
constexpr int any = -1;
} // namespace column

// Users are keyed by user; user_stats by user and action; user_records by user, action (the record
// type) and record; workers and teams by uuid; worker_stats by uuid and action.
struct TargetKey {
    std::int64_t user = 0;
    Uuid uuid{};
    std::string_view action{};
    std::string_view record{};
    auto operator<=>(const TargetKey &) const = default;
};

// What a batch adds to one target.
struct TargetDelta {
    TargetKey key{};
    Cents delta[max_value_columns] = {};
    bool fed[max_value_columns] = {}; // some row fed the column, be its sum zero
    bool has_activity = false;
    std::int64_t activity = 0; // latest touch, microseconds, UTC
};

// Integer columns show the exact value rounded; the others hold it, to the cent.
struct ColumnType {
    bool integer = true;
    Cents lowest = 0; // range of the column, in cents
    Cents highest = 0;
};

// A target as it was read under its lock, in the order of the deltas it answers.
struct TargetState {
    bool present = false;
    bool readable = true; // false: a column holds NaN or an infinity
    Cents shown[max_value_columns] = {};
    Cents remainder[max_value_columns] = {}; // exact value = shown + remainder
    std::int64_t last_active = 0;            // the lowest number where there is none yet
    std::string_view oauth_id;
};

struct TargetWrite {
    std::uint32_t index = 0; // of the delta
    bool present = false;    // update; otherwise insert
    bool value_changed = false;
    bool remainder_changed = false;
    Cents shown[max_value_columns] = {};
    Cents step[max_value_columns] = {}; // shown - what was shown before
    Cents remainder[max_value_columns] = {};
    bool touched = false; // last_active moves forward
    std::int64_t last_active = 0;
};

struct Settled {
    bool fits = false;
    Cents shown = 0;
    Cents remainder = 0;
};

// The value that the column shows for an exact value, and what is left over.
constexpr Settled settle(const ColumnType &type, Cents exact) noexcept
{
    Settled settled;
    settled.shown = type.integer ? round_to_units(exact) * cents_per_unit : exact;
    settled.remainder = exact - settled.shown;
    settled.fits = settled.shown >= type.lowest && settled.shown <= type.highest;
    return settled;
}

} // namespace kudos
