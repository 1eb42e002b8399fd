#include "amount.hpp"

#include "support.hpp"

namespace kudos {
namespace {

using test::operator""_kudos;

constexpr Cents largest_128 = static_cast<Cents>(~static_cast<unsigned __int128>(0) >> 1);
constexpr Cents smallest_128 = -largest_128 - 1;
constexpr Cents untouched = 31337;

struct Reading {
    Parsed parsed = Parsed::exact;
    Cents cents = untouched;
    bool operator==(const Reading &) const = default;
};

void PrintTo(const Reading &reading, std::ostream *out)
{
    static constexpr const char *names[] = {"exact", "rounded", "not finite", "malformed"};
    *out << names[static_cast<int>(reading.parsed)] << " " << test::show(reading.cents);
}

Reading read(std::string_view text)
{
    Reading reading;
    reading.parsed = parse_cents(text, reading.cents);
    return reading;
}

Reading exact(Cents cents)
{
    return {Parsed::exact, cents};
}

Reading rounded(Cents cents)
{
    return {Parsed::rounded, cents};
}

constexpr Reading malformed = {Parsed::malformed, untouched};
constexpr Reading not_finite = {Parsed::not_finite, untouched};

std::string written(Cents cents)
{
    char text[cents_text_size];
    return {text, format_cents(cents, text)};
}

TEST(ParseCents, ReadsNumericAsTheServerPrintsIt)
{
    EXPECT_EQ(read("0"), exact(0));
    EXPECT_EQ(read("0.00"), exact(0));
    EXPECT_EQ(read("-0.00"), exact(0));
    EXPECT_EQ(read("0.01"), exact(1));
    EXPECT_EQ(read("-0.01"), exact(-1));
    EXPECT_EQ(read("12.34"), exact(12.34_kudos));
    EXPECT_EQ(read("-12.34"), exact(-12.34_kudos));
    EXPECT_EQ(read("1.5"), exact(1.5_kudos));
    EXPECT_EQ(read("0012.30"), exact(12.3_kudos));
    EXPECT_EQ(read("9223372036854775807"), exact(9223372036854775807_kudos));
    EXPECT_EQ(read("-9223372036854775808"), exact(-9223372036854775808_kudos));
}

TEST(ParseCents, ReadsTheLooserFormsOfANumber)
{
    EXPECT_EQ(read("+5"), exact(5_kudos));
    EXPECT_EQ(read(".5"), exact(0.5_kudos));
    EXPECT_EQ(read("-.25"), exact(-0.25_kudos));
    EXPECT_EQ(read("7."), exact(7_kudos));
}

TEST(ParseCents, ReadsExponentsAsFloat8PrintsThem)
{
    EXPECT_EQ(read("1e+20"), exact(100'000'000'000'000'000'000_kudos));
    EXPECT_EQ(read("-1.5e+16"), exact(-15'000'000'000'000'000_kudos));
    EXPECT_EQ(read("1.2345e+2"), exact(123.45_kudos));
    EXPECT_EQ(read("1.2345E2"), exact(123.45_kudos));
    EXPECT_EQ(read("1234.5e-1"), exact(123.45_kudos));
    EXPECT_EQ(read("1e-2"), exact(1));
    EXPECT_EQ(read("100e-2"), exact(1_kudos));
    EXPECT_EQ(read("0e+308"), exact(0));
    EXPECT_EQ(read("0.000e-307"), exact(0));
}

TEST(ParseCents, RoundsWhatHasMoreThanTwoPlacesHalfAwayFromZero)
{
    EXPECT_EQ(read("0.005"), rounded(1));
    EXPECT_EQ(read("-0.005"), rounded(-1));
    EXPECT_EQ(read("0.00499999999999999999999999"), rounded(0));
    EXPECT_EQ(read("-0.00499999999999999999999999"), rounded(0));
    EXPECT_EQ(read("0.015"), rounded(2));
    EXPECT_EQ(read("0.025"), rounded(3));
    EXPECT_EQ(read("1.994999"), rounded(1.99_kudos));
    EXPECT_EQ(read("1.995"), rounded(2_kudos));
    EXPECT_EQ(read("-9.999"), rounded(-10_kudos));
    EXPECT_EQ(read("12345678901234.567"), rounded(12345678901234.57_kudos));
}

TEST(ParseCents, RoundsSmallExponentsByTheirValueNotTheirFirstDigit)
{
    EXPECT_EQ(read("5e-3"), rounded(1));
    EXPECT_EQ(read("4.9e-3"), rounded(0));
    EXPECT_EQ(read("9e-4"), rounded(0));
    EXPECT_EQ(read("9e-5"), rounded(0));
    EXPECT_EQ(read("-9.99e-307"), rounded(0));
    EXPECT_EQ(read("0.05e-1"), rounded(1));
}

TEST(ParseCents, CallsTrailingZeroesExact)
{
    EXPECT_EQ(read("1.2300000"), exact(1.23_kudos));
    EXPECT_EQ(read("0.0000000000000000000000"), exact(0));
    EXPECT_EQ(read("1230000e-6"), exact(1.23_kudos));
}

TEST(ParseCents, HoldsTheEdgesOfTheAmountsAndOfTheSnapshotSums)
{
    EXPECT_EQ(read("999999999999999999.99"), exact(999'999'999'999'999'999.99_kudos));
    EXPECT_EQ(read("-999999999999999999.99"), exact(-999'999'999'999'999'999.99_kudos));
    EXPECT_EQ(read("9999999999999999999999999999.99"), exact(9'999'999'999'999'999'999'999'999'999.99_kudos));
    EXPECT_EQ(read("-9999999999999999999999999999.99"), exact(-9'999'999'999'999'999'999'999'999'999.99_kudos));
}

TEST(ParseCents, RefusesWhatIsTooLargeInsteadOfWrapping)
{
    EXPECT_EQ(read("1701411834604692317316873037158841057.28"), malformed);
    EXPECT_EQ(read("-1701411834604692317316873037158841057.29"), malformed);
    EXPECT_EQ(read("340282366920938463463374607431768211456"), malformed);
    EXPECT_EQ(read("1.7976931348623157e+308"), malformed);
    EXPECT_EQ(read("-1e+40"), malformed);
    EXPECT_EQ(read(std::string(1000, '9')), malformed);
}

Cents largest_that_parses()
{
    Cents largest = 0;
    for (std::string nines = "9"; parse_cents(nines, largest) == Parsed::exact; nines += "9")
        ;
    return largest;
}

// A batch adds its rows up, in one target, before anything looks at a column's range.
TEST(ParseCents, LeavesRoomToAddUpTheLargestBatchOfTheLargestAmounts)
{
    constexpr Cents largest_batch = 100'000;
    EXPECT_LE(largest_that_parses(), largest_128 / largest_batch);
}

TEST(ParseCents, TellsNaNAndTheInfinitiesFromNonsense)
{
    EXPECT_EQ(read("NaN"), not_finite);
    EXPECT_EQ(read("Infinity"), not_finite);
    EXPECT_EQ(read("-Infinity"), not_finite);
}

TEST(ParseCents, RefusesWhatIsNoNumber)
{
    for (const std::string_view text :
         {"",     " ",     "-",      "+",     ".",    "-.",  "e",       "e5",  ".e5", "1e",
          "1e+",  "1e-",   "1e1.5",  "1.2.3", "1 ",   " 1",  "--1",     "+-1", "1,5", "1_000",
          "0x10", "1e5e5", "twelve", "12abc", "NaN1", "Inf", "infinit", "１"})
        EXPECT_EQ(read(text), malformed) << '"' << text << '"';
    EXPECT_EQ(read(std::string_view("1\0", 2)), malformed);
    EXPECT_EQ(read(std::string_view()), malformed);
}

TEST(FormatCents, AlwaysWritesTwoPlacesAndALeadingDigit)
{
    EXPECT_EQ(written(1), "0.01");
    EXPECT_EQ(written(10), "0.10");
    EXPECT_EQ(written(100), "1.00");
    EXPECT_EQ(written(-1), "-0.01");
    EXPECT_EQ(written(-99), "-0.99");
    EXPECT_EQ(written(-123456), "-1234.56");
    EXPECT_EQ(written(999'999'999'999'999'999.99_kudos), "999999999999999999.99");
}

TEST(FormatCents, NeverWritesANegativeZero)
{
    Cents cents = untouched;
    ASSERT_EQ(parse_cents("-0.00", cents), Parsed::exact);
    EXPECT_EQ(written(cents), "0.00");
    ASSERT_EQ(parse_cents("-0.001", cents), Parsed::rounded);
    EXPECT_EQ(written(cents), "0.00");
}

TEST(FormatCents, WritesTheWholeRangeOfItsType)
{
    EXPECT_EQ(written(largest_128), "1701411834604692317316873037158841057.27");
    EXPECT_EQ(written(smallest_128), "-1701411834604692317316873037158841057.28");
}

TEST(RoundToUnits, RoundsHalfAwayFromZero)
{
    EXPECT_EQ(round_to_units(0), 0);
    EXPECT_EQ(round_to_units(0.49_kudos), 0);
    EXPECT_EQ(round_to_units(0.5_kudos), 1);
    EXPECT_EQ(round_to_units(1.49_kudos), 1);
    EXPECT_EQ(round_to_units(2.5_kudos), 3);
    EXPECT_EQ(round_to_units(-0.49_kudos), 0);
    EXPECT_EQ(round_to_units(-0.5_kudos), -1);
    EXPECT_EQ(round_to_units(-1.49_kudos), -1);
    EXPECT_EQ(round_to_units(-2.5_kudos), -3);
    EXPECT_EQ(round_to_units(999'999'999'999'999'999.5_kudos), Cents{1'000'000'000'000'000'000});
}

// The rule of parse_cents in long hand: write the number out, cut it behind the second place.
Reading read_long_hand(const std::string &text)
{
    static const test::Pattern infinite("[+-]?(NaN|Infinity|inf)");
    static const test::Pattern number("([+-]?)([0-9]*)[.]?([0-9]*)([eE]([+-]?[0-9]{1,3}))?");
    if (infinite.matches(text))
        return not_finite;
    const std::vector<std::string> parts = number.groups(text);
    if (parts.empty() || (parts[2].empty() && parts[3].empty()))
        return malformed;

    std::string whole = parts[2];
    std::string fraction = parts[3];
    for (int exponent = parts[5].empty() ? 0 : std::stoi(parts[5]); exponent != 0;) {
        if (exponent > 0) {
            whole += fraction.empty() ? '0' : fraction.front();
            fraction.erase(0, 1);
            exponent--;
        } else {
            fraction.insert(fraction.begin(), whole.empty() ? '0' : whole.back());
            if (!whole.empty())
                whole.pop_back();
            exponent++;
        }
    }
    fraction.resize(std::max(fraction.size(), std::size_t{2}), '0');
    std::string kept = whole + fraction.substr(0, 2);
    const std::string cut = fraction.substr(2);
    kept.erase(0, std::min(kept.find_first_not_of('0'), kept.size()));
    if (kept.size() > test::show(largest_that_parses()).size() - 1)
        return malformed;

    Reading reading = exact(0);
    for (const char digit : kept)
        reading.cents = reading.cents * 10 + (digit - '0');
    if (cut.find_first_not_of('0') != std::string::npos) {
        reading.parsed = Parsed::rounded;
        reading.cents += cut.front() >= '5';
    }
    if (parts[1] == "-")
        reading.cents = -reading.cents;
    return reading;
}

std::string digits(test::Random &random, std::size_t most)
{
    std::string text;
    for (std::size_t size = random.below(most + 1); text.size() < size;)
        text += random.one_in(3) ? '0' : random.one_in(4) ? '9' : static_cast<char>('0' + random.below(10));
    return text;
}

TEST(ParseCents, AgreesWithWritingTheNumberOutInLongHand)
{
    test::Random random(20240601);
    for (int i = 0; i < 20'000; i++) {
        std::string text = random.pick(std::vector<std::string>{"", "-", "+"});
        text += digits(random, random.one_in(4) ? 40 : 6);
        if (random.one_in(2))
            text += "." + digits(random, random.one_in(4) ? 40 : 4);
        if (random.one_in(2))
            text += random.pick(std::vector<std::string>{"e", "e+", "e-", "E"}) +
                    std::to_string(random.below(random.one_in(4) ? 400 : 8));
        EXPECT_EQ(read(text), read_long_hand(text)) << text;
    }
}

TEST(ParseCents, AgreesWithTheLongHandOnRandomBytes)
{
    test::Random random(77);
    constexpr std::string_view likely = "00123456789..--++eE";
    constexpr std::string_view words[] = {"NaN", "Infinity", "inf", "1e", "e-", "0."};
    for (int i = 0; i < 20'000; i++) {
        std::string text;
        for (std::size_t pieces = random.below(12); pieces > 0; pieces--) {
            if (random.one_in(12))
                text += random.pick(words);
            else if (random.one_in(12))
                text += static_cast<char>(random.bits());
            else
                text += random.pick(likely);
        }
        EXPECT_EQ(read(text), read_long_hand(text)) << testing::PrintToString(text);
    }
}

} // namespace
} // namespace kudos
