# ioctl.pl FILE NUMBER [LEN]: an ioctl with a zeroed buffer; `ok` or the errno.
use strict; use warnings;
my ($path, $number, $len) = @ARGV;
open(my $file, "<", $path) or die "open: $!";
my $buffer = "\0" x ($len || 256);
my $done = ioctl($file, hex($number), $buffer);
my ($name) = grep { $_ !~ /^(EWOULDBLOCK|ENOTSUP)$/ && $!{$_} } keys %!;
print defined $done ? "ok" : $name;
