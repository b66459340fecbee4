package netguard

import (
	"net/netip"
	"slices"
)

// IsPublic reports whether an address is a global unicast address outside the special-purpose
// ranges, without a zone. An IPv4-mapped or NAT64 address counts as the IPv4 address inside it.
func IsPublic(a netip.Addr) bool {
	if a.Zone() != "" {
		return false
	}
	a = Unwrap(a)
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.IsLinkLocalUnicast() || a.Is6() && !within(globalV6[:], a) {
		return false
	}
	return !within(specialPurpose[:], a) && !IsMetadata(a)
}

// IsMetadata reports whether an address is a cloud provider's metadata service, which hands
// out the credentials of the machine.
func IsMetadata(a netip.Addr) bool { return within(metadata[:], Unwrap(a).WithZone("")) }

// Unwrap returns the IPv4 address inside a mapped or NAT64 address, where a connection to it
// would end up, and any other address unchanged.
func Unwrap(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if within(nat64[:], a) {
		b := a.As16()
		return netip.AddrFrom4([4]byte(b[12:16]))
	}
	return a
}

func within(ranges []string, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(text string) bool { return netip.MustParsePrefix(text).Contains(a) })
}

// globalV6 is the range from which IPv6 global unicast addresses are allocated.
var globalV6 = [...]string{"2000::/3"}

// nat64 is the well-known prefix of IPv4 addresses behind a translator. The prefix for local
// use, 64:ff9b:1::/48, is outside globalV6.
var nat64 = [...]string{"64:ff9b::/96"}

// specialPurpose are the ranges of IANA's special-purpose registries that netip's own
// predicates do not know. Teredo is in 2001::/23, 6to4 is 2002::/16.
var specialPurpose = [...]string{
	"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
}

// metadata are cloud metadata addresses: the link-local ones, private ones (Amazon's,
// Google's), Alibaba's and Azure's.
var metadata = [...]string{"169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "fd20:ce::/32", "100.100.100.200/32", "168.63.129.16/32"}
