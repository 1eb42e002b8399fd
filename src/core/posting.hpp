// A posting: one signed row of the archive, as the fold sees it (contract, section 1).
//
// Everything here is trivially destructible: the server layer fills these structs, and a server
// error may jump over them. Text is borrowed from the claim, which outlives the batch.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string_view>

#include "amount.hpp"

namespace kudos {

// What NUMERIC(20,2) holds at most, in cents: 999999999999999999.99.
constexpr Cents highest_posting = Cents{1000000000} * 1000000000 * cents_per_unit - 1;

struct Uuid {
    std::array<std::uint8_t, 16> bytes{};
    auto operator<=>(const Uuid &) const = default;
};

// A row of kudos_ledger. Times are microseconds, naive UTC.
struct CurrencyPosting {
    std::int64_t id = 0;
    Uuid event;
    std::int64_t user = 0;
    Cents amount = 0;
    std::string_view reservation; // business id of the hold that a debit names
    bool names_reservation = false;
    bool escrow = false;
    bool foldable = true; // false: the amount is no finite number of cents
};

// A row of kudos_stat_events. An absent column has its has_ flag false.
struct StatPosting {
    std::int64_t id = 0;
    Uuid event;
    std::int64_t user = 0;
    Uuid worker;
    Uuid team;
    Cents amount = 0;
    std::int64_t created = 0;
    std::string_view entry_type;
    std::string_view unit;
    std::string_view action; // stat_action
    std::string_view record;
    std::int32_t action_length = 0; // in characters
    std::int32_t record_length = 0;
    bool has_user = false;
    bool has_worker = false;
    bool has_team = false;
    bool has_action = false;
    bool has_record = false;
    bool touches = false; // detail carries a truthy touch_last_active
    bool foldable = true;
};

// Which rule of the fold a stat row feeds; the first that holds, in this order (section 3).
enum class StatRule : std::uint8_t {
    user_kudos,
    worker_kudos,
    stat_record,
    stat_contribution,
    stat_activity,
    unknown,
};

constexpr StatRule rule_of(const StatPosting &row) noexcept
{
    if (row.has_record && row.record == "user_kudos")
        return StatRule::user_kudos;
    if (row.has_record && row.record == "worker_kudos")
        return StatRule::worker_kudos;
    if (row.entry_type == "STAT_RECORD")
        return StatRule::stat_record;
    if (row.entry_type == "STAT_CONTRIBUTION")
        return StatRule::stat_contribution;
    if (row.entry_type == "STAT_ACTIVITY")
        return StatRule::stat_activity;
    return StatRule::unknown;
}

} // namespace kudos
