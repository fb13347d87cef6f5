package hubsim

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

func init() {
	app := func(f func(*Hub, *call) (int, any, error)) operation { return operation{who: asApp, serve: f} }
	maps.Copy(operations, map[string]operation{
		"apps/get-authenticated":                app((*Hub).getApp),
		"apps/list-installations":               app((*Hub).listInstallations),
		"apps/get-installation":                 app((*Hub).getInstallation),
		"apps/create-installation-access-token": app((*Hub).createToken),
		"apps/get-repo-installation":            app((*Hub).getRepoInstallation),
		"apps/get-webhook-config-for-app":       app((*Hub).getHookConfig),
		"apps/update-webhook-config-for-app":    app((*Hub).setHookConfig),
		"apps/list-webhook-deliveries":          app((*Hub).listDeliveries),
		"apps/get-webhook-delivery":             app((*Hub).getDelivery),
		"apps/redeliver-webhook-delivery":       app((*Hub).redeliverDelivery),
		"apps/revoke-installation-access-token": {who: asInstallation, serve: (*Hub).revokeToken},
		"apps/list-repos-accessible-to-installation": {
			who: asInstallation, permissions: []string{"metadata"}, level: "read", serve: (*Hub).listInstallationRepos,
		},
		"meta/get":       {serve: (*Hub).getMeta},
		"rate-limit/get": {serve: (*Hub).getRateLimit},
	})
}

func (h *Hub) getApp(*call) (int, any, error) { return http.StatusOK, h.appJSON(), nil }

func (h *Hub) listInstallations(c *call) (int, any, error) {
	ids := slices.Sorted(maps.Keys(h.installations))
	list := []object{}
	for _, id := range page(c, ids) {
		list = append(list, h.installationJSON(h.installations[id]))
	}
	return http.StatusOK, list, nil
}

func (h *Hub) getInstallation(c *call) (int, any, error) {
	i := h.installations[c.intParam("installation_id")]
	if i == nil {
		return 0, nil, notFound
	}
	return http.StatusOK, h.installationJSON(i), nil
}

func (h *Hub) getRepoInstallation(c *call) (int, any, error) {
	i := h.installationOf(c.repo)
	if i == nil {
		return 0, nil, notFound
	}
	return http.StatusOK, h.installationJSON(i), nil
}

func (h *Hub) createToken(c *call) (int, any, error) {
	i := h.installations[c.intParam("installation_id")]
	if i == nil {
		return 0, nil, notFound
	}
	var req tokenRequest
	if err := c.decode(&req); err != nil {
		return 0, nil, err
	}
	token, p, err := h.newToken(i, req)
	if err != nil {
		return 0, nil, err
	}
	o := object{
		"token": token, "expires_at": timeJSON(p.expires), "permissions": p.permissions,
		"repository_selection": selection(p.repos == nil && i.repos == nil),
	}
	if p.repos != nil {
		o["repositories"] = h.visibleRepos(p)
	}
	return http.StatusCreated, o, nil
}

// visibleRepos lists the repositories that a token can see.
func (h *Hub) visibleRepos(p *principal) []object {
	list := []object{}
	for _, r := range h.installedRepos(p.installation) {
		if p.sees(r) {
			list = append(list, h.repoJSON(r))
		}
	}
	return list
}

func (h *Hub) revokeToken(c *call) (int, any, error) {
	maps.DeleteFunc(h.tokens, func(_ string, p *principal) bool { return p == c.who })
	h.touch()
	return http.StatusNoContent, nil, nil
}

func (h *Hub) listInstallationRepos(c *call) (int, any, error) {
	if c.who.kind != asInstallation {
		return 0, nil, &apiError{status: http.StatusForbidden, message: "You must authenticate with an installation access token in order to list repositories for an installation."}
	}
	repos := h.visibleRepos(c.who)
	return http.StatusOK, object{
		"total_count": len(repos), "repositories": page(c, repos),
		"repository_selection": selection(c.who.repos == nil && c.who.installation.repos == nil),
	}, nil
}

func (h *Hub) getHookConfig(*call) (int, any, error) {
	return http.StatusOK, object{"content_type": "json", "insecure_ssl": "0", "secret": "********", "url": h.hook.url}, nil
}

func (h *Hub) setHookConfig(c *call) (int, any, error) {
	var req struct {
		URL    *string `json:"url"`
		Secret *string `json:"secret"`
	}
	if err := c.decode(&req); err != nil {
		return 0, nil, err
	}
	set(&h.hook.url, req.URL)
	set(&h.hook.secret, req.Secret)
	return h.getHookConfig(c)
}

func deliveryJSON(d *delivery) object {
	o := object{
		"id": d.ID, "guid": d.GUID, "delivered_at": timeJSON(d.DeliveredAt), "redelivery": d.Redelivery,
		"duration": d.Duration.Seconds(), "status": d.Status, "status_code": d.StatusCode, "event": d.Event,
		"action": stringOrNull(d.Action), "installation_id": nil, "repository_id": nil, "throttled_at": nil,
	}
	if d.InstallationID != 0 {
		o["installation_id"] = d.InstallationID
	}
	if d.RepositoryID != 0 {
		o["repository_id"] = d.RepositoryID
	}
	return o
}

// listDeliveries lists newest first; the cursor is the id to continue below.
func (h *Hub) listDeliveries(c *call) (int, any, error) {
	below := int64(1<<63 - 1)
	if s := c.query.Get("cursor"); s != "" {
		n, err := strconv.ParseInt(strings.TrimPrefix(s, "v1_"), 10, 64)
		if err != nil || !strings.HasPrefix(s, "v1_") {
			return 0, nil, &apiError{status: http.StatusBadRequest, message: "Invalid cursor"}
		}
		below = n
	}
	per := queryInt(c.query, "per_page", perPageDefault, perPageMax)
	list := []object{}
	for _, d := range slices.Backward(h.deliveries) {
		if !d.Attempted || d.ID >= below || !statusMatches(c.query.Get("status"), d) {
			continue
		}
		if len(list) == per {
			c.addLink("next", "cursor", "v1_"+strconv.FormatInt(list[per-1]["id"].(int64), 10))
			break
		}
		list = append(list, deliveryJSON(d))
	}
	return http.StatusOK, list, nil
}

func statusMatches(status string, d *delivery) bool {
	return status == "" || (status == "success") == d.succeeded()
}

func (h *Hub) getDelivery(c *call) (int, any, error) {
	d := h.delivery(c.intParam("delivery_id"))
	if d == nil || !d.Attempted {
		return 0, nil, notFound
	}
	o := deliveryJSON(d)
	o["url"] = d.URL
	o["request"] = object{"headers": flatten(d.RequestHeader), "payload": payloadJSON(d.Body)}
	o["response"] = object{"headers": flatten(d.ResponseHeader), "payload": stringOrNull(string(d.ResponseBody))}
	return http.StatusOK, o, nil
}

// payloadJSON is null for a body, sent raw, that is no JSON object.
func payloadJSON(body []byte) any {
	var o json.RawMessage
	if v, err := decodeJSON(body); err == nil {
		if _, ok := v.(object); ok {
			o = body
			return o
		}
	}
	return nil
}

func flatten(header http.Header) any {
	if header == nil {
		return nil
	}
	o := object{}
	for k, v := range header {
		o[k] = strings.Join(v, ", ")
	}
	return o
}

func (h *Hub) redeliverDelivery(c *call) (int, any, error) {
	d := h.delivery(c.intParam("delivery_id"))
	if d == nil || !d.Attempted {
		return 0, nil, notFound
	}
	h.redeliver(d)
	return http.StatusAccepted, object{}, nil
}

func (h *Hub) getMeta(*call) (int, any, error) {
	return http.StatusOK, object{
		"verifiable_password_authentication": false, "hooks": []string{"127.0.0.0/8"}, "api": []string{"127.0.0.0/8"}, "git": []string{"127.0.0.0/8"},
	}, nil
}

func (h *Hub) getRateLimit(c *call) (int, any, error) {
	r := object{
		"limit": h.opts.RateLimit, "used": c.rate.used, "remaining": h.opts.RateLimit - c.rate.used, "reset": c.rate.reset.Unix(), "resource": "core",
	}
	return http.StatusOK, object{"resources": object{"core": r, "search": r}, "rate": r}, nil
}
