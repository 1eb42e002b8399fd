// Which stat rows can never be projected, and why (contract, section 4).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "posting.hpp"

namespace kudos {

// In the order in which they are asked; the first that holds is the row's reason.
enum class Reason : std::uint8_t {
    none,
    missing_user,
    stat_action_too_long,
    record_too_long,
    invalid_user_kudos,
    invalid_worker_kudos,
    invalid_stat_record,
    invalid_stat_record_unit,
    invalid_stat_contribution,
    invalid_stat_activity,
    unknown_projection,
};

// The spelling that kudos_stat_events.quarantine_reason holds.
std::string_view reason_text(Reason reason) noexcept;

// What the database can take at the moment.
struct ProjectionLimits {
    std::span<const std::string_view> record_types; // labels of userrecordtypes
    std::int32_t user_action = 20;                  // width of user_stats.action, in characters
    std::int32_t worker_action = 20;                // width of worker_stats.action
    std::int32_t record = 30;                       // width of user_records.record
};

// existing_users must be sorted.
Reason validate(const StatPosting &row, std::span<const std::int64_t> existing_users,
                const ProjectionLimits &limits) noexcept;

} // namespace kudos
