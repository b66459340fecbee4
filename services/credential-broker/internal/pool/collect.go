package pool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// descs describe the metrics.
type descs struct {
	requests, retries, switches, cooldowns, tokens, cost, unpriced, added *prometheus.Desc
}

func newDescs() descs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("signalbox_broker_account_"+name, help, append([]string{"provider", "account"}, labels...), nil)
	}
	return descs{
		requests:  desc("requests_total", "Requests by the account that was chosen for them, and how they went.", "reason"),
		retries:   desc("retries_total", "Requests that were sent again with the same account, by the reason.", "reason"),
		switches:  desc("switches_total", "Requests that went on to another account, by the account that they left and the reason.", "reason"),
		cooldowns: desc("cooldowns_total", "How often accounts were parked, by the reason.", "reason"),
		tokens:    desc("tokens_total", "Tokens as providers counted them; what the cache is about is part of the input.", "kind"),
		cost:      desc("cost_dollars_total", "What the tokens cost in US dollars; nothing for accounts with a flat rate."),
		unpriced:  desc("unpriced_total", "Requests with tokens of a model whose price is unknown."),
		added:     desc("added_seconds_total", "Time that the broker itself added before requests were sent, by the account that they were sent with first."),
	}
}

// Describe implements prometheus.Collector.
func (m *Meter) Describe(to chan<- *prometheus.Desc) {
	d := &m.descs
	for _, one := range []*prometheus.Desc{d.requests, d.retries, d.switches, d.cooldowns, d.tokens, d.cost, d.unpriced, d.added} {
		to <- one
	}
}

// Collect implements prometheus.Collector. What is zero is left out.
func (m *Meter) Collect(to chan<- prometheus.Metric) {
	for _, s := range m.all() {
		m.collect(to, s)
	}
}

// all returns the series that there are, so that nobody waits while they are sent.
func (m *Meter) all() []*series {
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := make([]*series, 0, len(m.accounts)+len(m.others))
	for _, s := range m.accounts {
		all = append(all, s)
	}
	for _, s := range m.others {
		all = append(all, s)
	}
	return all
}

func (m *Meter) collect(to chan<- prometheus.Metric, s *series) {
	d := &m.descs
	send := func(desc *prometheus.Desc, value float64, labels ...string) {
		if value > 0 {
			to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, append([]string{s.provider, s.account}, labels...)...)
		}
	}
	for i := range reasons {
		reason := string(reasons[i])
		send(d.requests, float64(s.requests[i].Load()), reason)
		send(d.retries, float64(s.retries[i].Load()), reason)
		send(d.switches, float64(s.switches[i].Load()), reason)
		send(d.cooldowns, float64(s.cooldowns[i].Load()), reason)
	}
	for i, kind := range kinds {
		send(d.tokens, float64(s.tokens[i].Load()), kind)
	}
	send(d.cost, float64(s.micros.Load())/1e6)
	send(d.unpriced, float64(s.unpriced.Load()))
	send(d.added, time.Duration(s.added.Load()).Seconds())
}
