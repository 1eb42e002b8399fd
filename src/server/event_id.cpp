#include "event_id.hpp"

extern "C" {
#include "common/cryptohash.h"
#include "common/sha1.h"
}

namespace kudos::server {
namespace {

// 6ba7b811-9dad-11d1-80b4-00c04fd430c8, RFC 4122, appendix C.
constexpr uint8 url_namespace[16] = {0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1,
                                     0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8};
constexpr std::string_view prefix = "aihorde-kudos:";

void update(pg_cryptohash_ctx *hash, const void *data, Size size)
{
    if (pg_cryptohash_update(hash, static_cast<const uint8 *>(data), size) < 0)
        elog(ERROR, "could not hash an idempotency key: %s", pg_cryptohash_error(hash));
}

} // namespace

Uuid event_id_of_key(std::string_view key)
{
    uint8 digest[SHA1_DIGEST_LENGTH];
    pg_cryptohash_ctx *hash = pg_cryptohash_create(PG_SHA1);
    if (hash == nullptr || pg_cryptohash_init(hash) < 0)
        elog(ERROR, "could not start hashing an idempotency key");
    update(hash, url_namespace, sizeof(url_namespace));
    update(hash, prefix.data(), prefix.size());
    update(hash, key.data(), key.size());
    if (pg_cryptohash_final(hash, digest, sizeof(digest)) < 0)
        elog(ERROR, "could not hash an idempotency key: %s", pg_cryptohash_error(hash));
    pg_cryptohash_free(hash);

    Uuid id;
    memcpy(id.bytes.data(), digest, id.bytes.size());
    id.bytes[6] = static_cast<uint8>((id.bytes[6] & 0x0f) | 0x50); // version 5
    id.bytes[8] = static_cast<uint8>((id.bytes[8] & 0x3f) | 0x80); // variant of RFC 4122
    return id;
}

} // namespace kudos::server
