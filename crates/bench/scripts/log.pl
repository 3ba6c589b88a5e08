# COUNT lines of a log in a hash, and the words in them in another; prints what they and lookups at random add up to.
use strict;
use warnings;

my $count = shift;
my @names = qw(GET POST open close index user error ok);
my (%lines, %words);
for my $i (1 .. $count) {
    my $line = join ' ', map { $names[$i * $_ % 8] . $i % (97 * $_) } 1 .. 6;
    $lines{$i} = $line;
    $words{$_}++ for split / /, $line;
}
my ($sum, $hash) = (0, 17);
$sum += length for values %lines;
for my $i (1 .. $count) {
    my $line = $lines{$i * 7919 % $count + 1};
    $hash = ($hash * 31 + ord(substr $line, $i % length $line)) % 1000003;
}
print "$sum $hash ", scalar keys %words, "\n";
