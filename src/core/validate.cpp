#include "validate.hpp"

#include <algorithm>

#include "no_server_headers.hpp"

namespace kudos {
namespace {

std::int32_t action_limit(const StatPosting &row, const ProjectionLimits &limits)
{
    switch (rule_of(row)) {
    case StatRule::user_kudos:
        return limits.user_action;
    case StatRule::worker_kudos:
        return limits.worker_action;
    default:
        return std::min(limits.user_action, limits.worker_action);
    }
}

bool is_record_type(std::string_view action, const ProjectionLimits &limits)
{
    return std::find(limits.record_types.begin(), limits.record_types.end(), action) != limits.record_types.end();
}

bool is_record_unit(const StatPosting &row)
{
    if (row.action == "CONTRIBUTION" || row.action == "USAGE")
        return row.unit == "things";
    if (row.action == "FULFILLMENT" || row.action == "REQUEST" || row.action == "STYLE")
        return row.unit == "count";
    return row.unit == "things" || row.unit == "count";
}

bool is_contribution(const StatPosting &row)
{
    return row.has_worker && row.has_action &&
           ((row.action == "contributions" && row.unit == "things") ||
            (row.action == "fulfilments" && row.unit == "count"));
}

bool is_activity(const StatPosting &row)
{
    return row.has_user && row.has_record && row.record == "last_active" && row.unit == "count" && row.touches;
}

Reason validate_rule(const StatPosting &row, const ProjectionLimits &limits)
{
    switch (rule_of(row)) {
    case StatRule::user_kudos:
        return row.has_user && row.has_action && row.unit == "kudos" ? Reason::none : Reason::invalid_user_kudos;
    case StatRule::worker_kudos:
        return row.has_worker && row.has_action && row.unit == "kudos" ? Reason::none : Reason::invalid_worker_kudos;
    case StatRule::stat_record:
        if (!row.has_user || !row.has_action || !row.has_record || !is_record_type(row.action, limits))
            return Reason::invalid_stat_record;
        return is_record_unit(row) ? Reason::none : Reason::invalid_stat_record_unit;
    case StatRule::stat_contribution:
        return is_contribution(row) ? Reason::none : Reason::invalid_stat_contribution;
    case StatRule::stat_activity:
        return is_activity(row) ? Reason::none : Reason::invalid_stat_activity;
    case StatRule::unknown:
        break;
    }
    return Reason::unknown_projection;
}

} // namespace

std::string_view reason_text(Reason reason) noexcept
{
    switch (reason) {
    case Reason::none:
        break;
    case Reason::missing_user:
        return "missing_user";
    case Reason::stat_action_too_long:
        return "stat_action_too_long";
    case Reason::record_too_long:
        return "record_too_long";
    case Reason::invalid_user_kudos:
        return "invalid_user_kudos";
    case Reason::invalid_worker_kudos:
        return "invalid_worker_kudos";
    case Reason::invalid_stat_record:
        return "invalid_stat_record";
    case Reason::invalid_stat_record_unit:
        return "invalid_stat_record_unit";
    case Reason::invalid_stat_contribution:
        return "invalid_stat_contribution";
    case Reason::invalid_stat_activity:
        return "invalid_stat_activity";
    case Reason::unknown_projection:
        return "unknown_projection";
    }
    return "";
}

Reason validate(const StatPosting &row, std::span<const std::int64_t> existing_users,
                const ProjectionLimits &limits) noexcept
{
    if (row.has_user && !std::binary_search(existing_users.begin(), existing_users.end(), row.user))
        return Reason::missing_user;
    if (row.has_action && row.action_length > action_limit(row, limits))
        return Reason::stat_action_too_long;
    if (row.has_record && row.record_length > limits.record)
        return Reason::record_too_long;
    return validate_rule(row, limits);
}

} // namespace kudos
